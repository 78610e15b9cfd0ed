"""numba's cache on disk for many processes: one of them compiles a kernel, the others wait and read what it wrote.

Ranks come to a new kernel at the same moment. With numba's own cache each would compile it, on cores that they share,
and since a kernel's index file is read, changed and written back, those that end together would lose each other's
entries.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache

from comm_compress.kernels.tools.compile_notice import name_of, said

try:
    import fcntl
except ImportError:  # Windows: every process compiles for itself
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
LONGEST_WAIT = 120.0  # s: who holds the lock for longer has stopped, and what it would have written is made here
BETWEEN_LOOKS = 0.01  # s


class SharedCache(FunctionCache):
    """The cache of one kernel. From a miss until the result is written, this process holds a lock.

    There is one for each form of a kernel (types of arguments, and constants that it was made with), so that several
    processes may compile several forms at once, and one for the index of all of them, for the moment of writing. A
    form's lock is held while the kernels that it calls are compiled, each under its own: calls have no circles, so no
    two processes wait for each other. The locks are the operating system's (flock): they end with their process.
    Where the file system has none, every process compiles for itself.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._kernel = name_of(function)
        self._base = str(Path(self.cache_path) / self._impl.filename_base)
        self._held: io.TextIOWrapper | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kernel compiled for these types, or None: the caller compiles it then, and nobody else does."""
        found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is None and self._acquire(sig, target_context):
            found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
            if found is not None:
                self._release()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write what was compiled, for all who wait."""
        try:
            with _alone(Path(f"{self._base}.lock")):
                super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        finally:
            self._release()

    def _acquire(self, sig: Any, target_context: Any) -> bool:
        """Wait for the form's lock; False where it cannot be had, or took too long."""
        self._release()  # of another form, whose compilation failed
        key = self._index_key(sig, target_context.codegen())  # type: ignore[no-untyped-call]
        name = hashlib.blake2b(repr(key).encode(), digest_size=8).hexdigest()
        self._held = _lock(Path(f"{self._base}.{name}.lock"), lambda: said(self._kernel))
        return self._held is not None

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            _unlock(held)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold this lock inside, if it can be had."""
    held = _lock(path, contextlib.nullcontext)
    try:
        yield
    finally:
        if held is not None:
            _unlock(held)


def _lock(path: Path, while_waiting: Callable[[], contextlib.AbstractContextManager[None]]) -> io.TextIOWrapper | None:
    """The locked file; None where the file system knows no locks, or another process held this one for too long."""
    if not HAS_LOCKS:
        return None
    with contextlib.suppress(OSError):
        file = path.open("w")
        if _is_locked(file):
            return file
        deadline = time.monotonic() + LONGEST_WAIT
        with while_waiting():
            while time.monotonic() < deadline:
                time.sleep(BETWEEN_LOOKS)
                if _is_locked(file):
                    return file
        file.close()
    return None


def _is_locked(file: io.TextIOWrapper) -> bool:
    """Take the lock if nobody has it; OSError where the file system knows no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(file: io.TextIOWrapper) -> None:
    fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has the file, too
    file.close()
