"""One process writes a run's folder at a time: rank 0 holds a lock on it, which the kernel takes back when it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

NAME = "lock"


class HeldError(ValueError):
    """Another process writes the folder; the message says which."""


class RunLock:
    """A lock that this process holds. ``is_new``: the folder was empty, or missing, and then it was made."""

    def __init__(self, folder: Path) -> None:
        """Take the lock. HeldError while another process has it; OSError where the folder cannot be written."""
        self._path = folder / NAME
        self._descriptor = self._take()
        os.truncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        self.is_new = [path.name for path in folder.iterdir()] == [NAME]

    def release(self) -> None:
        """Give the lock back and remove its file."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _take(self) -> int:
        while True:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:  # its folder was removed since: a start that was refused
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                os.close(descriptor)
                raise HeldError(
                    f"run_name: {self._path.parent} is being written by process {holder or '(unknown)'}; wait until it "
                    "has ended, or choose another name"
                ) from None
            if self._is_there(descriptor):
                return descriptor
            os.close(descriptor)  # its holder removed the file between our two calls

    def _is_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(descriptor))
        except FileNotFoundError:
            return False
