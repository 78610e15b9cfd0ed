"""Ranges of blocks on torch's own threads.

torch's OpenMP workers spin for a while after each of its operations. Threads of our own would wait for their cores
meanwhile, so kernels run on those workers themselves, by the call that compilers make of `#pragma omp parallel`. Where
torch does not bring GNU's OpenMP (macOS, Windows, some builds), a plain thread pool takes its place. numba's own
threads spin too, and take the cores from torch and from other ranks.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

WORTH_A_THREAD = 1 << 18  # elements: below, handing work over costs more than it saves

Team = Callable[[Callable[[int], None], int], None]
"""Calls ``part(0)`` to ``part(number - 1)``, each once, side by side, and raises what the first that failed raised."""


def over_blocks(function: Callable[..., None], num_blocks: int, block_size: int, *arguments: object) -> None:
    """``function(first, last, *arguments)`` over all blocks, shared out among torch's threads; it releases the GIL."""
    parts = min(torch.get_num_threads(), num_blocks, num_blocks * block_size // WORTH_A_THREAD)
    if parts <= 1:
        function(0, num_blocks, *arguments)
        return
    (openmp_team() or pool_team)(
        lambda part: function(num_blocks * part // parts, num_blocks * (part + 1) // parts, *arguments), parts
    )


def pool_team(part: Callable[[int], None], number: int) -> None:
    """A `Team` of this thread, which has nothing else to do, and a pool's."""
    others = [_pool(torch.get_num_threads() - 1).submit(part, i) for i in range(1, number)]
    try:
        part(0)
    finally:
        failures = [other.exception() for other in others]  # waits: they write to the caller's memory
    for failure in failures:
        if failure is not None:
            raise failure


@functools.cache
def openmp_team() -> Team | None:
    """A `Team` of torch's OpenMP threads, or None where there is no such library."""
    found = [*(Path(torch.__file__).parent / "lib").glob("libgomp*.so*")] if sys.platform == "linux" else []
    if len(found) != 1:
        return None
    library = ctypes.CDLL(str(found[0]))  # the one that torch has loaded
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    start: Any = library.GOMP_parallel
    start.argtypes, start.restype = [callback, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    rank, size = library.omp_get_thread_num, library.omp_get_num_threads

    def team(part: Callable[[int], None], number: int) -> None:
        failures: list[BaseException] = []

        def work(_: int | None) -> None:
            try:
                for i in range(rank(), number, size()):  # there may be fewer threads than were asked for, or more
                    part(i)
            except BaseException as failure:
                failures.append(failure)

        # torch's number, not ours: a smaller team would end threads that torch has to start again
        start(callback(work), None, max(number, torch.get_num_threads()), 0)
        if failures:
            raise failures[0]

    return team


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="comm_compress")
