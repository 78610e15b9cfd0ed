"""Changes of floats in units in the last place as numba kernels.

One thread compares and applies, in one pass: where an element's raw bits go depends on all elements before it.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.coding.frequencies import Counts
from comm_compress.kernels.coding.loops.counting import COUNTERS, PIECE, count_bytes
from comm_compress.kernels.coding.loops.octets import TOGETHER, look_up, within
from comm_compress.kernels.coding.ulp.reference import DIRECT, EXPONENT, WIDTHS
from comm_compress.kernels.coding.ulp.vectors import move, store_distances, store_exponents
from comm_compress.kernels.tools.compiled import Array, compiled, inlined
from comm_compress.kernels.tools.scratch import Scratch, fresh
from comm_compress.kernels.tools.threads import over_blocks
from comm_compress.kernels.tools.vectors.unaligned import load_word, lowest_bit, store_word
from comm_compress.kernels.tools.vectors.vectors import LANES

RAW_BYTES = 4  # at most 28 bits an element
AT_ONCE = 1 << 16  # pieces that counters of 32 bits are enough for


def exponent_counts(values: Tensor) -> Tensor:
    counts, alone = np.zeros(256, np.int64), threading.Lock()
    bits, place = _bits(values), _place(values)

    def count(first: int, last: int) -> None:
        part = _count(first, last, bits, *place)
        with alone:
            np.add(counts, part, out=counts)

    over_blocks(count, math.ceil(values.numel() / PIECE), PIECE)
    return torch.from_numpy(counts)


def by_exponent(values: Tensor, table: Tensor, out: Tensor) -> Tensor:
    arguments = _bits(values), *_place(values), table.numpy(), out.numpy()
    over_blocks(_look_up, math.ceil(values.numel() / PIECE), PIECE, *arguments)
    return out


def difference(old: Tensor, new: Tensor, scratch: Scratch = fresh) -> tuple[Tensor, Tensor]:
    symbols = scratch("symbols", (old.numel(),), torch.uint8, old.device)
    room = scratch("raw bits", (old.numel() * RAW_BYTES + 8,), torch.uint8, old.device)
    far = np.empty(PIECE + LANES, _bits(old).dtype)
    written = _difference(_bits(old), _bits(new), 8 * old.itemsize, symbols.numpy(), far, room.numpy())
    return symbols, room[:written]


def apply(values: Tensor, symbols: Tensor, raw_bits: Tensor) -> Tensor:
    far = np.empty(PIECE + LANES, _bits(values).dtype)
    _apply(_bits(values), symbols.numpy(), raw_bits.numpy(), far, 8 * values.itemsize)
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
def _count(first: int, last: int, bits: Array, place: int, mask: int) -> Counts:
    sums, exponents = np.zeros(256, np.int64), np.empty(PIECE, np.uint8)
    for start in range(first, last, AT_ONCE):
        counts = np.zeros((COUNTERS, 256), np.uint32)
        for piece in range(start, min(start + AT_ONCE, last)):
            begin, end = piece * PIECE, min((piece + 1) * PIECE, bits.size)
            _exponents(bits, begin, end, place, mask, exponents, 0)
            count_bytes(exponents, 0, end - begin, counts)
        for counter in range(COUNTERS):
            for exponent in range(256):
                sums[exponent] += counts[counter, exponent]
    return sums


@compiled
def _exponents(bits: Array, begin: int, end: int, place: int, mask: int, out: Array, start: int) -> None:
    """Write the exponents of ``bits[begin : end]`` from ``out[start]`` on."""
    whole = begin + (end - begin) // LANES * LANES
    for i in range(begin, whole, LANES):
        store_exponents(bits, i, place, mask, out, start + i - begin)
    for i in range(whole, end):
        out[start + i - begin] = (np.int64(bits[i]) >> place) & mask


@compiled
def _look_up(first: int, last: int, bits: Array, place: int, mask: int, table: Array, out: Array) -> None:
    for piece in range(first, last):
        begin, end = piece * PIECE, min((piece + 1) * PIECE, bits.size)
        _exponents(bits, begin, end, place, mask, out, begin)
        whole = begin + (end - begin) // TOGETHER * TOGETHER
        for i in range(begin, whole, TOGETHER):
            look_up(out, i, table)
        for i in range(whole, end):
            out[i] = table[out[i]]


@inlined
def _fold(bits: np.int64, magnitude: np.int64) -> np.int64:
    return np.int64(bits ^ ((bits >> 63) & magnitude))


@compiled
def _difference(old: Array, new: Array, width: int, symbols: Array, far: Array, packed: Array) -> int:
    waiting, count, place = np.uint64(0), np.int64(0), np.int64(0)
    for begin in range(0, old.size, PIECE):
        end, found = min(begin + PIECE, old.size), 0
        whole = begin + (end - begin) // LANES * LANES
        for i in range(begin, whole, LANES):
            found += store_distances(old, new, i, symbols, far, found)
        for i in range(whole, end):
            symbols[i], z = _symbol(old[i], new[i], width)
            if z >= DIRECT:
                far[found] = z
                found += 1
        for k in range(found):
            z = np.int64(far[k]) & ((np.int64(1) << width) - 1)
            raw = _raw_bits(z)
            waiting |= np.uint64(z & ((np.int64(1) << raw) - 1)) << np.uint64(count)
            count += raw
            store_word(packed, place, waiting)
            place += count >> 3
            waiting >>= np.uint64(count & ~7)
            count &= 7
    return int(place + (count > 0))


@inlined
def _raw_bits(z: Any) -> Any:
    """How many bits of a number from 16 on are raw."""
    return (np.float64(z).view(np.int64) >> 52) - 1023 - 3


@inlined
def _symbol(old: Any, new: Any, width: Any) -> Any:
    """The symbol for how far a float moved, and that distance, folded."""
    magnitude, places = (np.int64(1) << (width - 1)) - 1, 64 - width
    d = _fold(np.int64(new), magnitude) - _fold(np.int64(old), magnitude)
    d = (d << places) >> places
    z = ((d << 1) ^ (d >> 63)) & ((np.int64(1) << width) - 1)
    symbol = z
    if z >= DIRECT:
        raw = _raw_bits(z)
        symbol = DIRECT + 8 * (raw - 1) + ((z >> raw) & 7)
    return np.uint8(symbol), z


@compiled
def _apply(values: Array, symbols: Array, packed: Array, far: Array, width: int) -> None:
    bit: Any = np.int64(0)
    for begin in range(0, values.size, PIECE):
        end = min(begin + PIECE, values.size)
        bit = _read_far(symbols, begin, end, packed, bit, far)
        found, whole = 0, begin + (end - begin) // LANES * LANES
        for i in range(begin, whole, LANES):
            found += move(values, i, symbols, far, found)
        for i in range(whole, end):
            z = np.int64(symbols[i])
            if z >= DIRECT:
                z = np.int64(far[found])
                found += 1
            values[i] = _moved(values[i], z, width)


@compiled
def _read_far(symbols: Array, begin: int, end: int, packed: Array, bit: int, far: Array) -> int:
    """Write to ``far`` the folded distances of symbols that have raw bits; returns where the next ones begin."""
    found, i, place = 0, begin, np.int64(bit)
    while i < end:
        mask = np.uint64(0)
        if i + TOGETHER <= end:
            mask = within(symbols, i, np.uint8(DIRECT), np.uint8(255 - DIRECT))
        else:
            for k in range(end - i):
                mask |= np.uint64(symbols[i + k] >= DIRECT) << np.uint64(k)
        while mask:
            symbol = np.int64(symbols[i + lowest_bit(mask)]) - DIRECT
            mask &= mask - np.uint64(1)
            raw = symbol // 8 + 1
            low = _word(packed, place) & ((np.int64(1) << raw) - 1)
            far[found] = ((8 | (symbol & 7)) << raw) | low
            found, place = found + 1, place + raw
        i += TOGETHER
    return int(place)


@inlined
def _moved(value: Any, z: Any, width: Any) -> Any:
    """A float after it moved by a folded distance."""
    magnitude, places = (np.int64(1) << (width - 1)) - 1, 64 - width
    z &= (np.int64(1) << width) - 1
    ordered = _fold(np.int64(value), magnitude) + ((z >> 1) ^ -(z & 1))
    return _fold((ordered << places) >> places, magnitude)


@inlined
def _word(packed: Any, bit: Any) -> Any:
    """At least 56 bits from one on, as far as there are any."""
    place = bit >> 3
    word = np.uint64(0)
    if place + 8 <= packed.size:
        word = load_word(packed, place)
    else:
        for k in range(packed.size - place):
            word |= np.uint64(packed[place + k]) << np.uint64(8 * k)
    return np.int64(word >> np.uint64(bit & 7))
