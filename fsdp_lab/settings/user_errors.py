"""How commands end without a traceback: with one message and exit code 2, or silently where the pipe is closed."""

import contextlib
import os
import select
import signal
import sys
import unicodedata
from collections.abc import Iterator

from fsdp_lab.files.errors import NOBODYS_MISTAKE


@contextlib.contextmanager
def user_errors(prog: str = "error") -> Iterator[None]:
    """Turns a ValueError into a message on stderr and exit code 2. Use it only around what a user can get wrong."""
    try:
        yield
    except ValueError as error:
        message = printable(str(error), keep="\n")
        print(f"{prog}: {message}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None


def printable(text: str, keep: str = "") -> str:
    """``text`` with its control characters written out (``\\x1b``), except those in ``keep``, such as a newline.

    So text from a stranger cannot move the cursor, colour or clear the terminal, reverse a line (Unicode's
    bidirectional marks), or break a table or XML.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter in keep or not _controls(letter) else _written_out(letter) for letter in text)


def _controls(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _written_out(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


@contextlib.contextmanager
def unix_endings() -> Iterator[None]:
    """Ends a command as Unix tools end: silently when the reader of its output has gone (``| head``; 128 + SIGPIPE),
    and with one line and exit code 1 when the disk refuses what it writes.
    """
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
        _drop_output()
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        if error.errno not in NOBODYS_MISTAKE:
            raise
        what = "a file" if error.filename is None else printable(str(error.filename))
        print(f"cannot write {what}: {error.strerror}; make room, or name another place", file=sys.stderr, flush=True)
        _drop_output()
        raise SystemExit(1) from None


def _drop_output() -> None:
    """What is left to be printed can go nowhere, and the interpreter would try at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
