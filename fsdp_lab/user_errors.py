"""A user's mistake is one message and exit code 2, never a traceback; also when every rank finds it at once."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REFUSAL_FILE = "FSDP_LAB_REFUSAL_FILE"


@contextlib.contextmanager
def user_errors(prog: str = "error") -> Iterator[None]:
    """Turns a ValueError into its message on stderr and exit code 2. Wrap what a user can get wrong, not the training.

    torchrun answers a rank's exit code 2 with its own traceback and exit code 1. So run_safe_training.sh names a file
    in FSDP_LAB_REFUSAL_FILE: the first rank to fail leaves its message there and prints it, ranks with the same
    message stay silent, all leave with 0, and the script, finding the file, returns 2.
    """
    try:
        yield
    except ValueError as error:
        message, latch = f"{prog}: {error}", os.environ.get(REFUSAL_FILE)
        if latch is None or _is_news(Path(latch), message):
            print(message, file=sys.stderr, flush=True)
        raise SystemExit(2 if latch is None else 0) from None


def _is_news(latch: Path, message: str) -> bool:
    """Whether this is the first rank to fail, or fails otherwise than the first one did."""
    with tempfile.NamedTemporaryFile("w", dir=latch.parent, encoding="utf-8") as whole:
        whole.write(message)
        whole.flush()
        try:
            os.link(whole.name, latch)  # a link appears with its content, and only once
        except FileExistsError:
            return latch.read_text(encoding="utf-8") != message
    return True
