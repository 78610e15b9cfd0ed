"""Changes of floats in units in the last place as numba kernels.

One thread compares and applies, in one pass: where an element's raw bits go depends on all elements before it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.common.scratch import Scratch, fresh
from comm_compress.kernels.cpu.bits import fetch_bytes, flush_bytes
from comm_compress.kernels.reference.ulp import DIRECT, EXPONENT, WIDTHS
from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.threads import over_blocks

RAW_BYTES = 4  # at most 28 bits an element
COUNTED, COUNTERS = 1 << 17, 4  # elements counted together; a run of one exponent does not wait for itself


def exponent_counts(values: Tensor) -> Tensor:
    counts = np.zeros((math.ceil(values.numel() / COUNTED), COUNTERS, 256), np.uint32)
    over_blocks(_count, len(counts), COUNTED, _bits(values), *_place(values), counts)
    return torch.from_numpy(counts.sum((0, 1), dtype=np.int64))


def by_exponent(values: Tensor, table: Tensor, out: Tensor) -> Tensor:
    over_blocks(_look_up, values.numel(), 1, _bits(values), *_place(values), table.numpy(), out.numpy())
    return out


def difference(old: Tensor, new: Tensor, scratch: Scratch = fresh) -> tuple[Tensor, Tensor]:
    symbols = scratch("symbols", (old.numel(),), torch.uint8, old.device)
    room = scratch("raw bits", (old.numel() * RAW_BYTES + 8,), torch.uint8, old.device)
    written = _difference(_bits(old), _bits(new), 8 * old.itemsize, symbols.numpy(), room.numpy())
    return symbols, room[:written]


def apply(values: Tensor, symbols: Tensor, raw_bits: Tensor) -> Tensor:
    _apply(_bits(values), symbols.numpy(), raw_bits.numpy(), 8 * values.itemsize)
    return values


def _place(values: Tensor) -> tuple[int, int]:
    """Where the exponent's bits begin, and as many ones as it has."""
    place = EXPONENT[values.dtype]
    return place, (1 << (8 * values.itemsize - 1 - place)) - 1


def _bits(values: Tensor) -> Array:
    """The memory of contiguous floats as integers."""
    bits: Array = values.view(WIDTHS[values.itemsize]).numpy()
    return bits


@compiled
def _count(first: int, last: int, bits: Array, place: int, mask: int, counts: Array) -> None:
    for block in range(first, last):
        for i in range(block * COUNTED, min((block + 1) * COUNTED, bits.size)):
            counts[block, i % COUNTERS, (np.int64(bits[i]) >> place) & mask] += 1


@compiled
def _look_up(first: int, last: int, bits: Array, place: int, mask: int, table: Array, out: Array) -> None:
    for i in range(first, last):
        out[i] = table[(np.int64(bits[i]) >> place) & mask]


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
def _apply(values: Array, symbols: Array, packed: Array, width: int) -> None:
    magnitude, places = (np.int64(1) << (width - 1)) - 1, 64 - width
    waiting, count, place = np.uint64(0), np.int64(0), 0
    for i in range(values.size):
        z = np.int64(symbols[i])
        if z >= DIRECT:
            raw = (z - DIRECT) // 8 + 1
            waiting, count, place = fetch_bytes(waiting, count, raw, packed, place)
            low = np.int64(waiting) & ((np.int64(1) << raw) - 1)
            z = ((8 | ((z - DIRECT) & 7)) << raw) | low
            waiting >>= np.uint64(raw)
            count -= raw
        ordered = _fold(np.int64(values[i]), magnitude) + ((z >> 1) ^ -(z & 1))
        values[i] = _fold((ordered << places) >> places, magnitude)
