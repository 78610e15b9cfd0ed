"""One cell runs once at a time, however many sweeps work on the same results file.

The lock is on an open file that the cell's process inherits: it holds for as long as either the sweep or the cell's
process lives, so what a killed sweep leaves running is not started a second time beside it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Lock:
    """A held lock; ``fd`` is the descriptor that a child inherits."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd

    def release(self) -> None:
        """Release the lock and remove its file, which nobody else can hold meanwhile."""
        self.path.unlink(missing_ok=True)
        os.close(self.fd)


def take(path: Path) -> Lock | None:
    """The lock, or None while another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        if _is(path, fd):
            return Lock(path, fd)
        os.close(fd)  # its holder removed the file between our two calls


def _is(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
