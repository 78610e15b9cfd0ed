"""Signs as bits and back, for CPU kernels: bit i % 8 of byte i // 8, unused bits zero."""

from __future__ import annotations

import numpy as np

from comm_compress.kernels.numba_tools import Array, compiled
from comm_compress.kernels.vectors import LANES, at_least, load, load_mask, splat, store, store_mask, where


@compiled
def pack_signs(values: Array, out: Array) -> None:
    """Bits "x >= 0" of ``values`` (see `vectors.bits_of`) to ``out``, uint8 ``[ceil(n / 8)]``."""
    for i in range(0, values.size, LANES):
        store_mask(out, i // 8, values.size - i, at_least(load(values, i, values.size), np.float32(0)))


@compiled
def expand_signs(bits: Array, a: np.float32, b: np.float32, out: Array) -> None:
    """``a`` where the bit is 1, else ``b``, to ``out`` (see `vectors.bits_of`)."""
    first, second = splat(a), splat(b)
    for i in range(0, out.size, LANES):
        store(out, i, out.size, where(load_mask(bits, i // 8, out.size - i), first, second))
