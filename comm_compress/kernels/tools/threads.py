"""Ranges of blocks on torch's own threads.

torch's OpenMP workers spin for a while after each of its operations. Threads of our own would wait for their cores
meanwhile, so kernels run on those workers themselves, by the call that compilers make of `#pragma omp parallel`. Where
torch is not built with GNU's OpenMP (macOS, Windows), a plain thread pool takes its place. numba's own threads spin
too, and take the cores from torch and from other ranks. As ever with OpenMP, ranks times threads should not exceed
the cores.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

WORTH_SHARING = 1 << 20  # elements: below, handing work over costs what it saves
PART = 1 << 18  # elements, at least
PARTS_A_THREAD = 4  # so that who is done early, or whose core is free, takes more

Team = Callable[[Callable[[int], None], int], None]
"""Calls ``part(0)`` to ``part(number - 1)``, each once, side by side; what a part raises, it raises when all rest."""


def over_blocks(function: Callable[..., None], num_blocks: int, block_size: int, *arguments: object) -> None:
    """``function(first, last, *arguments)`` over all blocks, shared out among torch's threads; it releases the GIL."""
    threads, elements = torch.get_num_threads(), num_blocks * block_size
    if num_blocks < 2 or not shared_out(elements):
        function(0, num_blocks, *arguments)
        return
    parts = min(PARTS_A_THREAD * threads, num_blocks, elements // PART)
    (openmp_team() or pool_team)(
        lambda part: function(num_blocks * part // parts, num_blocks * (part + 1) // parts, *arguments), parts
    )


def shared_out(elements: int) -> bool:
    """Are so many elements worth more than one thread, and are there several?"""
    return elements >= WORTH_SHARING and torch.get_num_threads() > 1


def pool_team(part: Callable[[int], None], number: int) -> None:
    """A `Team` of this thread, which has nothing else to do, and a pool; once interrupted it does not wait for that."""
    threads = torch.get_num_threads() - 1
    left, failures = iter(range(number)), list[BaseException]()
    others = [_pool(threads).submit(_work, part, left, failures) for _ in range(threads)]
    _work(part, left, failures)
    for other in others:
        other.result()
    if failures:
        raise failures.pop(0)


@functools.cache
def openmp_team() -> Team | None:
    """A `Team` of torch's OpenMP threads, or None where it has no such."""
    try:
        # through torch itself: the library that it is bound to, should there be several
        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        start: Any = torch_cpu.GOMP_parallel
    except (OSError, AttributeError):
        return None
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    start.argtypes, start.restype = [callback, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None

    def team(part: Callable[[int], None], number: int) -> None:
        left, failures = iter(range(number)), list[BaseException]()

        def work(_: int | None) -> None:
            _work(part, left, failures)

        with _raised_on_entry(work, failures):
            # as many as torch takes: a smaller team would end threads that torch has to start again
            start(callback(work), None, torch.get_num_threads(), 0)
        if failures:
            raise failures.pop(0)
        assert next(left, None) is None, "a thread stops when nothing is left, or something was raised"

    return team


def _work(part: Callable[[int], None], left: Iterator[int], failures: list[BaseException]) -> None:
    """One thread's: what the others have left."""
    try:
        for i in left:
            part(i)
    except BaseException as failure:  # it belongs to the caller, and cannot pass through OpenMP
        failures.append(failure)


@contextlib.contextmanager
def _raised_on_entry(work: Callable[..., None], failures: list[BaseException]) -> Iterator[None]:
    """Adds what a signal handler raises when the main thread enters the callback ``work``, before that can catch it.

    ctypes would report it and go on, as if the work were done.
    """
    if threading.current_thread() is not threading.main_thread():  # no handler runs there
        yield
        return
    before = sys.unraisablehook

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if lost.object is work and lost.exc_value is not None:
            failures.append(lost.exc_value)
        else:
            before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="comm_compress")
