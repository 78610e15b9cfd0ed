"""What the numba kernels share: how they are compiled.

Once, and cached on disk. No fast-math: every operation rounds as the reference's does. They release the GIL.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
import torch

from comm_compress.kernels.compiling import NOTICES

INFINITY = np.int32(0x7F800000)  # bits of +inf as int32: magnitudes order like their bits, and NaN lies above
MAGNITUDE = np.int32(0x7FFFFFFF)
ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds half to even, as torch.round does
TINY = np.float32(torch.finfo(torch.float32).tiny)

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
        NOTICES.kernels.add(id(kernel))
        return kernel
    finally:
        SETTINGS.CACHE_DIR = before


inlined = numba.njit(inline="always")  # a piece of a loop's body: as an ordinary call it made packing 3 times slower


@compiled
def peak_bits(bits: Array) -> np.int32:
    """The largest magnitude among floats given by their bits (or among int32 keys)."""
    peak = np.int32(0)
    for i in range(bits.size):
        peak = max(peak, np.int32(bits[i] & MAGNITUDE))
    return np.int32(peak)
