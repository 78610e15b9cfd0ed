"""How commands end: a user's mistake is one message and exit code 2, a reader that leaves is none; no traceback."""

import contextlib
import os
import select
import signal
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


@contextlib.contextmanager
def unix_pipes() -> Iterator[None]:
    """Ends a command whose reader has gone (``| head``) without a word, as Unix tools end: with 128 + SIGPIPE."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here, and not in the interpreter's last moments
    except BrokenPipeError:
        poll = select.poll()
        poll.register(sys.stdout)
        if not any(event & select.POLLERR for _, event in poll.poll(0)):
            raise  # it was another pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left can go nowhere
        raise SystemExit(128 + signal.SIGPIPE) from None
