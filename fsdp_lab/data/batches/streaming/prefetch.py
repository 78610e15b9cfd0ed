"""Calling a function ahead of time in a background thread."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Calls ``produce`` in one thread, in order, up to ``depth`` calls ahead of the results that are taken.

    What ``produce`` raises is raised by the `take` that would have returned its result; take nothing after that.
    """

    def __init__(self, produce: Callable[[], T], depth: int) -> None:
        self._produce = produce
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._ahead = deque(self._worker.submit(produce) for _ in range(depth))

    def take(self) -> T:
        """Returns the next result, and starts one more call."""
        self._ahead.append(self._worker.submit(self._produce))
        return self._ahead.popleft().result()

    def close(self) -> None:
        """Drops the results not taken, and waits for the call that is running."""
        self._worker.shutdown(cancel_futures=True)
