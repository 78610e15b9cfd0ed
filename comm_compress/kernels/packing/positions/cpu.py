"""Ascending positions as numba kernels: one pass over the positions, word by word."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.packing.bitmap.cpu import places_of_ones, word_at
from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.threads import over_blocks
from comm_compress.kernels.tools.vectors.unaligned import load_word, store_word

WORTH = 8  # elements of a plain pass that a position takes as long as


def encode(positions: Tensor, low: int, gaps: bool, upper: Tensor, lower: Tensor) -> None:
    rows, k = positions.shape
    upper.zero_()
    arrays = positions.contiguous().numpy(), low, gaps, upper.numpy(), lower.numpy()
    over_blocks(_encode, rows, WORTH * k, *arrays)


def decode(upper: Tensor, lower: Tensor, low: int, gaps: bool, k: int) -> Tensor:
    positions = torch.empty(upper.shape[0], k, dtype=torch.int32)
    counts = np.zeros(upper.shape[0], np.int64)
    strings = upper.contiguous().numpy(), lower.contiguous().numpy()
    over_blocks(_decode, upper.shape[0], WORTH * k, *strings, low, gaps, positions.numpy(), counts)
    assert counts.min(initial=k) == k, f"{counts.min()} bits of {k} are set"
    return positions


def gap_steps(positions: Tensor, widths: int) -> list[int]:
    steps = np.zeros(widths, np.int64)
    _gap_steps(positions[0].contiguous().numpy(), steps)
    return [int(step) for step in steps]


@compiled
def _encode(first: int, last: int, positions: Array, low: int, gaps: bool, upper: Array, lower: Array) -> None:
    mask = np.uint32((1 << low) - 1)
    for row in range(first, last):
        place, before = -1, -1
        word, base = np.uint64(0), 0  # what is still to be written of the upper string, and where it goes
        waiting, count, octet = np.uint64(0), 0, 0  # and of the lower one
        for i in range(positions.shape[1]):
            position = positions[row, i]
            number = position - before - 1 if gaps else position - i
            place = place + 1 + (number >> low) if gaps else (number >> low) + i
            before = position
            while place - base >= 64:
                _store(upper[row], base >> 3, word)
                word, base = np.uint64(0), base + 64
            word |= np.uint64(1) << np.uint64(place - base)
            bits = np.uint64(np.uint32(number) & mask)
            waiting |= bits << np.uint64(count)
            count += low
            if count >= 64:
                _store(lower[row], octet, waiting)
                count, octet = count - 64, octet + 8
                waiting = bits >> np.uint64(low - count) if count else np.uint64(0)
        _store(upper[row], base >> 3, word)
        if count:
            _store(lower[row], octet, waiting)


@compiled
def _store(octets: Array, start: int, word: np.uint64) -> None:
    """Eight bytes, or as many as the string has left."""
    if start + 8 <= octets.size:
        store_word(octets, start, word)
    else:
        for i in range(start, octets.size):
            octets[i] = np.uint8(word >> np.uint64(8 * (i - start)) & np.uint64(255))


@compiled
def _decode(
    first: int, last: int, upper: Array, lower: Array, low: int, gaps: bool, positions: Array, counts: Array
) -> None:
    for row in range(first, last):
        counts[row] = places_of_ones(upper[row], positions[row])
        if counts[row] == positions.shape[1]:
            _add_lower_bits(lower[row], low, gaps, positions[row])


@compiled
def _add_lower_bits(lower: Array, low: int, gaps: bool, positions: Array) -> None:
    """From the places of the upper string's ones to positions."""
    mask, place_before, before = np.uint64((1 << low) - 1), np.int64(-1), np.int64(-1)
    safe = max(8 * (lower.size - 8), 0) // max(low, 1)  # so many numbers begin where eight bytes are left
    for i in range(positions.size):
        bit = i * low
        word = load_word(lower, bit >> 3) if i < safe else word_at(lower, bit >> 3)
        bits, place = np.int64(word >> np.uint64(bit & 7) & mask), np.int64(positions[i])
        if gaps:
            before += 1 + ((place - place_before - 1) << low) + bits
            place_before = place
            positions[i] = before
        else:
            positions[i] = ((place - i) << low) + bits + i


@compiled
def _gap_steps(positions: Array, steps: Array) -> None:
    for low in range(steps.size):
        total = np.int64(positions[0] >> low)
        for i in range(1, positions.size):
            total += (positions[i] - positions[i - 1] - 1) >> low
        steps[low] = total
