"""numba's cache on disk for many processes: one of them compiles a kernel, the others wait and read what it wrote.

Ranks come to a new kernel at the same moment. With numba's own cache each would compile it, on cores that they share,
and since a kernel's index file is read, changed and written back, those that end together would lose each other's
entries.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache

from comm_compress.kernels.tools.compile_notice import name_of, said

try:
    import fcntl
except ImportError:  # Windows: every process compiles for itself
    fcntl = None  # type: ignore[assignment]

LONGEST_WAIT = 120.0  # s: who holds the lock for longer has stopped, and what it would have written is made here
BETWEEN_LOOKS = 0.01  # s


class SharedCache(FunctionCache):
    """The cache of one kernel. From a miss until the result is written, this process holds the kernel's lock.

    A kernel holds its lock while the kernels that it calls are compiled, each under its own: calls have no circles, so
    no two processes wait for each other. The lock is the operating system's (flock): it ends with its process.
    Where the file system has none, every process compiles for itself.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._kernel = name_of(function)
        self._lock = Path(self.cache_path) / f"{self._impl.filename_base}.lock"
        self._held: io.TextIOWrapper | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kernel compiled for these types, or None: the caller compiles it then, and nobody else does."""
        found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is None and self._acquire():
            found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
            if found is not None:
                self._release()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write what was compiled, for all who wait."""
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        finally:
            self._release()

    def _acquire(self) -> bool:
        """Wait for the lock; False where it is ours already (a compilation failed), cannot be had, or took too long."""
        if fcntl is None or self._held is not None:
            return False
        with contextlib.suppress(OSError):
            file = self._lock.open("w")
            if _locked(file) or self._locked_at_last(file):
                self._held = file
                return True
            file.close()
        return False

    def _locked_at_last(self, file: io.TextIOWrapper) -> bool:
        deadline = time.monotonic() + LONGEST_WAIT
        with said(self._kernel):
            while time.monotonic() < deadline:
                time.sleep(BETWEEN_LOOKS)
                if _locked(file):
                    return True
        return False

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            fcntl.flock(held, fcntl.LOCK_UN)  # a child that was forked meanwhile has the file, too
            held.close()


def _locked(file: io.TextIOWrapper) -> bool:
    """Take the lock if nobody has it; OSError where the file system knows no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
