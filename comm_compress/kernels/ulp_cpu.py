"""The ulp differences of `ulp_reference` as numba kernels: the same bytes in one pass.

One thread: where an element's raw bits go depends on all elements before it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.bits_cpu import fetch_bytes, flush_bytes
from comm_compress.kernels.numba_tools import Array, compiled
from comm_compress.kernels.threads import over_blocks
from comm_compress.kernels.ulp_reference import DIRECT, EXPONENT, WIDTHS

RAW_BYTES = 4  # at most 28 bits an element


def exponents(values: Tensor) -> Tensor:
    """As `ulp_reference.exponents`, on CPU."""
    place = EXPONENT[values.dtype]
    found = torch.empty(values.numel(), dtype=torch.uint8)
    mask = (1 << (8 * values.itemsize - 1 - place)) - 1
    over_blocks(_exponents, values.numel(), 1, _bits(values), place, mask, found.numpy())
    return found


def ulp_difference(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """As `ulp_reference.ulp_difference`, on CPU."""
    symbols = torch.empty(old.numel(), dtype=torch.uint8)
    room = torch.empty(old.numel() * RAW_BYTES + 8, dtype=torch.uint8)
    written = _difference(_bits(old), _bits(new), 8 * old.itemsize, symbols.numpy(), room.numpy())
    return symbols, room[:written].clone()


def ulp_apply(old: Tensor, symbols: Tensor, raw_bits: Tensor) -> Tensor:
    """As `ulp_reference.ulp_apply`, on CPU."""
    new = torch.empty_like(old)
    arrays = (symbols.contiguous().numpy(), raw_bits.contiguous().numpy())
    _apply(_bits(old), *arrays, 8 * old.itemsize, new.view(WIDTHS[old.itemsize]).numpy())
    return new


def _bits(values: Tensor) -> Array:
    bits: Array = values.contiguous().view(WIDTHS[values.itemsize]).numpy()
    return bits


@compiled
def _exponents(first: int, last: int, bits: Array, place: int, mask: int, found: Array) -> None:
    for i in range(first, last):
        found[i] = np.uint8((np.int32(bits[i]) >> place) & mask)


@compiled
def _fold(bits: np.int64, magnitude: np.int64) -> np.int64:
    return np.int64(bits ^ ((bits >> 63) & magnitude))


@compiled
def _difference(old: Array, new: Array, width: int, symbols: Array, packed: Array) -> int:
    magnitude, places = (np.int64(1) << (width - 1)) - 1, 64 - width
    waiting, count, place = np.uint64(0), np.int64(0), 0
    for i in range(old.size):
        d = _fold(np.int64(new[i]), magnitude) - _fold(np.int64(old[i]), magnitude)
        d = (d << places) >> places
        z = (d << 1) ^ (d >> 63)
        if z < DIRECT:
            symbols[i] = np.uint8(z)
            continue
        raw = (np.float64(z).view(np.int64) >> 52) - 1023 - 3
        symbols[i] = np.uint8(DIRECT + 8 * (raw - 1) + ((z >> raw) & 7))
        waiting |= np.uint64(z & ((np.int64(1) << raw) - 1)) << np.uint64(count)
        count += raw
        waiting, count, place = flush_bytes(waiting, count, packed, place)
    if count:
        packed[place] = np.uint8(waiting)
        place += 1
    return place


@compiled
def _apply(old: Array, symbols: Array, packed: Array, width: int, new: Array) -> None:
    magnitude, places = (np.int64(1) << (width - 1)) - 1, 64 - width
    waiting, count, place = np.uint64(0), np.int64(0), 0
    for i in range(old.size):
        z = np.int64(symbols[i])
        if z >= DIRECT:
            raw = (z - DIRECT) // 8 + 1
            waiting, count, place = fetch_bytes(waiting, count, raw, packed, place)
            low = np.int64(waiting) & ((np.int64(1) << raw) - 1)
            z = ((8 | ((z - DIRECT) & 7)) << raw) | low
            waiting >>= np.uint64(raw)
            count -= raw
        ordered = _fold(np.int64(old[i]), magnitude) + ((z >> 1) ^ -(z & 1))
        new[i] = _fold((ordered << places) >> places, magnitude)
