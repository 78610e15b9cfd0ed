"""A user's mistake is one message and exit code 2, never a traceback."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def user_errors(prog: str) -> Iterator[None]:
    """Turns a ValueError into its message on stderr and exit code 2."""
    try:
        yield
    except ValueError as error:
        print(f"{prog}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None
