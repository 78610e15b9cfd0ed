"""How commands end: a user's mistake is one message and exit code 2, a reader that leaves is none; no traceback."""

import contextlib
import os
import select
import signal
import sys
import unicodedata
from collections.abc import Iterator


@contextlib.contextmanager
def user_errors(prog: str = "error") -> Iterator[None]:
    """Turns a ValueError into its message on stderr and exit code 2. Wrap what a user can get wrong, nothing else."""
    try:
        yield
    except ValueError as error:
        message = printable(str(error), keep="\n")
        print(f"{prog}: {message}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None


def printable(text: str, keep: str = "") -> str:
    """``text`` with its control characters written out (``\\x1b``).

    So what somebody else wrote moves no cursor, colours or clears no terminal, reverses no line (Unicode's
    bidirectional marks), breaks no table and no XML.

    ``keep``: characters that are let through, such as a newline."""
    if text.isprintable():
        return text
    return "".join(letter if letter in keep or not _controls(letter) else _written_out(letter) for letter in text)


def _controls(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _written_out(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


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
