"""Says when a kernel is compiled: some seconds each, half a minute for a method, in which a program seems to hang.

The logger ``comm_compress`` gets two INFO messages, one before and one after; a record's ``kernel`` is its name and
``seconds`` what it took, None before. A kernel that is found on disk is not compiled, and nothing is said.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from numba.core import event

_LOG = logging.getLogger("comm_compress")


class Notices(event.Listener):
    """Hears of all that numba compiles, speaks of ours. What a kernel calls is part of it.

    numba compiles one function at a time, under a lock, so what is counted here needs none.
    """

    def __init__(self) -> None:
        self.kernels: set[int] = set()
        """Ids of the dispatchers to speak of; they last as long as the program."""
        self._depth = 0
        self._start = 0.0

    def on_start(self, event: Any) -> None:
        """numba begins to compile what it has found neither in memory nor on disk."""
        if id(event.data["dispatcher"]) not in self.kernels:
            return
        self._depth += 1
        if self._depth == 1:
            self._start = time.perf_counter()
            _say_begun(name_of(event.data["dispatcher"].py_func))

    def on_end(self, event: Any) -> None:
        """numba has compiled it, or has failed to."""
        if id(event.data["dispatcher"]) not in self.kernels:
            return
        self._depth -= 1
        if self._depth == 0:
            _say_done(name_of(event.data["dispatcher"].py_func), time.perf_counter() - self._start)


@contextlib.contextmanager
def said(kernel: str) -> Iterator[None]:
    """Say that ``kernel`` is compiled, by another process: inside, this one waits for it."""
    _say_begun(kernel)
    start = time.perf_counter()
    yield
    _say_done(kernel, time.perf_counter() - start)


def _say_begun(kernel: str) -> None:
    extra = {"kernel": kernel, "seconds": None}
    _LOG.info("compiling kernels (once for this version): %s", kernel, extra=extra)


def _say_done(kernel: str, seconds: float) -> None:
    _LOG.info("compiled %s in %.1f s", kernel, seconds, extra={"kernel": kernel, "seconds": seconds})


def name_of(function: Callable[..., Any]) -> str:
    """Return what messages call the kernel compiled from ``function``: "blocks.encode", by its topic's folder."""
    *_, inside = function.__module__.rpartition("kernels.")
    parts = inside.split(".")
    topic = parts[1] if len(parts) == 3 else parts[-1]  # room, topic and file; other files lie in no topic
    return f"{topic}.{function.__name__.strip('_')}"


NOTICES = Notices()
event.register("numba:compile", NOTICES)  # type: ignore[no-untyped-call]
