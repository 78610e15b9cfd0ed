"""Working ahead in the background."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Calls ``produce`` in one thread, in order, up to ``depth`` calls ahead of whoever takes the results.

    What ``produce`` raises is raised where its result would be taken; do not go on after that.
    """

    def __init__(self, produce: Callable[[], T], depth: int) -> None:
        self._produce = produce
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._ahead = deque(self._worker.submit(produce) for _ in range(depth))

    def take(self) -> T:
        """The next result."""
        self._ahead.append(self._worker.submit(self._produce))
        return self._ahead.popleft().result()

    def close(self) -> None:
        """Drop what was worked ahead, and wait for the call that runs."""
        self._worker.shutdown(cancel_futures=True)
