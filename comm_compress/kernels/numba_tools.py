"""What the numba kernels share: how they are compiled, and how they run on threads.

Compiled once and cached on disk. No fast-math: every operation rounds as the reference's does. Ranges of blocks
run on a plain thread pool of torch's size (the kernels release the GIL), because numba's own pools spin while
they wait and take the cores from torch and from other ranks.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
import torch

INFINITY = np.int32(0x7F800000)  # bits of +inf as int32: magnitudes order like their bits, and NaN lies above
MAGNITUDE = np.int32(0x7FFFFFFF)
TINY = np.float32(torch.finfo(torch.float32).tiny)
WORTH_A_THREAD = 1 << 18  # elements: below, handing work over costs more than it saves

Array = npt.NDArray[np.generic]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])


SETTINGS: Any = numba.config
_njit: Any = numba.njit(cache=True, nogil=True, error_model="numpy")


def _cache_folder() -> str:
    """Where compiled kernels are kept: a folder for each version of all kernels together.

    numba compares the file of the function itself only; a kernel compiled with an older version of something
    that it calls, from another file, would go on being used.
    """
    here = Path(__file__).parent
    version = hashlib.blake2b(digest_size=8)
    for source in sorted(here.glob("*.py")):
        version.update(source.read_bytes())
    beside, user = here / "__pycache__", Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    base = beside if os.access(here, os.W_OK) else user / "comm_compress"
    return str(Path(SETTINGS.CACHE_DIR or base) / f"kernels-{version.hexdigest()}")


CACHE_FOLDER = _cache_folder()


def compiled(function: Kernel) -> Kernel:
    """Decorator: compile for the types of the first call, once, and keep the result on disk."""
    before, SETTINGS.CACHE_DIR = SETTINGS.CACHE_DIR, CACHE_FOLDER
    try:
        kernel: Kernel = _njit(function)
        return kernel
    finally:
        SETTINGS.CACHE_DIR = before


inlined = numba.njit(inline="always")  # a piece of a loop's body: as an ordinary call it made packing 3 times slower


def over_blocks(function: Callable[..., None], num_blocks: int, block_size: int, *arguments: object) -> None:
    """``function(first, last, *arguments)`` over all blocks, shared out among torch's threads."""
    parts = min(torch.get_num_threads(), num_blocks, num_blocks * block_size // WORTH_A_THREAD)
    if parts <= 1:
        function(0, num_blocks, *arguments)
        return
    bounds = [num_blocks * part // parts for part in range(parts + 1)]
    pool = _pool(torch.get_num_threads() - 1)
    others = [pool.submit(function, a, b, *arguments) for a, b in itertools.pairwise(bounds[1:])]
    function(bounds[0], bounds[1], *arguments)  # this thread has nothing else to do
    for done in others:
        done.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="comm_compress")


@compiled
def peak_bits(bits: Array) -> np.int32:
    """The largest magnitude among floats given by their bits (or among int32 keys)."""
    peak = np.int32(0)
    for i in range(bits.size):
        peak = max(peak, np.int32(bits[i] & MAGNITUDE))
    return np.int32(peak)
