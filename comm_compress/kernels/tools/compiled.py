"""What the numba kernels share: how they are compiled.

Once, and cached on disk where one can be written. No fast-math: every operation rounds as the reference's does. They
release the GIL.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
import torch

from comm_compress.kernels.tools.compile_notice import NOTICES
from comm_compress.kernels.tools.shared_cache import SharedCache

INFINITY = np.int32(0x7F800000)  # bits of +inf as int32: magnitudes order like their bits, and NaN lies above
MAGNITUDE = np.int32(0x7FFFFFFF)
ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds half to even, as torch.round does
TINY = np.float32(torch.finfo(torch.float32).tiny)

Array = npt.NDArray[np.generic]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])


SETTINGS: Any = numba.config


def _cache_folder() -> str | None:
    """Where compiled kernels are kept: a folder for each version of all kernels together; None when none is writable.

    numba compares the file of the function itself only; a kernel compiled with an older version of something
    that it calls, from another file, would go on being used.
    """
    here = Path(__file__).parents[1]
    version = hashlib.blake2b(digest_size=8)
    for source in sorted(here.rglob("*.py")):
        version.update(source.read_bytes())
    folders = (base / f"kernels-{version.hexdigest()}" for base in _bases(here))
    return next((str(folder) for folder in folders if _takes_files(folder)), None)


def _bases(here: Path) -> Iterator[Path]:
    """numba's own setting, beside the code, the user's cache, and a folder for temporary files that is ours alone."""
    if SETTINGS.CACHE_DIR:
        yield Path(SETTINGS.CACHE_DIR)
    yield here / "__pycache__"
    with contextlib.suppress(RuntimeError):  # no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "comm_compress"
    with contextlib.suppress(OSError):  # no folder for temporary files
        ours = Path(tempfile.gettempdir()) / f"comm_compress-{os.getuid()}"
        ours.mkdir(mode=0o700, exist_ok=True)
        found = ours.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            yield ours  # what others could write there, we would run


def _takes_files(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


CACHE_FOLDER = _cache_folder()
_njit: Any = numba.njit(nogil=True, error_model="numpy")
if CACHE_FOLDER is None:
    warnings.warn("no folder is writable for compiled kernels: every start compiles them anew", stacklevel=2)


def compiled(function: Kernel) -> Kernel:
    """Decorator: compile for the types of the first call, once, and keep the result on disk where that can be."""
    before, SETTINGS.CACHE_DIR = SETTINGS.CACHE_DIR, CACHE_FOLDER or SETTINGS.CACHE_DIR
    try:
        kernel: Any = _njit(function)
        if CACHE_FOLDER is not None:
            kernel._cache = SharedCache(function)  # as numba's own `enable_caching` sets it
        NOTICES.kernels.add(id(kernel))
        return cast(Kernel, kernel)
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
