"""Choosing coordinates by magnitude as numba kernels: the reference's positions in about one pass over memory.

No sort and no partition of the row: a floor that at least k keys reach is guessed from a sample, or found with a
histogram of the keys' upper bits; what reaches it is collected in order; the exact k-th largest is found among those.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.numba_tools import MAGNITUDE, Array, compiled, over_blocks, peak_bits

SAMPLE = 1 << 14  # keys that the floor of a longer row is guessed from
BLOCK = 32  # keys whose maximum is compared with the floor before any of them is looked at


def largest(keys: Tensor, k: int) -> Tensor:
    """As `select_reference.largest`, for CPU keys."""
    rows, n = keys.shape
    places = torch.empty(rows, k, dtype=torch.int32)
    if places.numel():
        over_blocks(_largest, rows, n, keys.contiguous().numpy(), k, places.numpy())
    return places


def at_least(keys: Tensor, floors: Tensor) -> list[Tensor]:
    """As `select_reference.at_least`, for CPU keys."""
    return [
        torch.from_numpy(_at_least(row.numpy(), np.int32(floor)))
        for row, floor in zip(keys.contiguous(), floors.tolist(), strict=True)
    ]


@compiled
def _largest(first: int, last: int, keys: Array, k: int, places: Array) -> None:
    for row in range(first, last):
        _largest_of_row(keys[row], k, places[row])


@compiled
def _largest_of_row(keys: Array, k: int, places: Array) -> None:
    floor = _guess(keys, k)
    found: Array = np.empty(0, np.int32)
    if floor > 0:
        found = _collect(keys, floor, min(keys.size, 3 * k + 1024))
    if found.size < k:  # a row too short to guess for, or a guess too high or far too low
        nonzero = _count(keys, np.int32(1))
        if nonzero < k:
            _with_zeros(keys, k - nonzero, places)
            return
        floor, count = _histogram_floor(keys, k)
        found = _collect(keys, floor, count)
    kept = np.empty(found.size, np.int32)
    for i in range(found.size):
        kept[i] = keys[found[i]] & MAGNITUDE
    threshold, ties = _kth(kept, k)
    count = 0
    for i in range(found.size):
        if kept[i] > threshold:
            places[count] = found[i]
            count += 1
        elif kept[i] == threshold and ties > 0:
            places[count] = found[i]
            count += 1
            ties -= 1


@compiled
def _with_zeros(keys: Array, zeros: int, places: Array) -> None:
    """All keys but zeros, and the first ``zeros`` of those: a row such as an embedding's gradient."""
    count, i = 0, 0
    while count < places.size:
        if keys[i] & MAGNITUDE != 0 or zeros > 0:
            places[count] = i
            count += 1
            zeros -= keys[i] & MAGNITUDE == 0
        i += 1


@compiled
def _guess(keys: Array, k: int) -> np.int32:
    """A floor that somewhat more than k keys reach, from one key of every so many; 0 where a guess is not worth it."""
    if keys.size < 4 * SAMPLE:
        return np.int32(0)
    stride = keys.size // SAMPLE
    expected = k / stride
    rank = int(expected + 4 * np.sqrt(expected) + 8)
    if rank > SAMPLE // 4:
        return np.int32(0)
    sample = np.empty(SAMPLE, np.int32)
    for i in range(SAMPLE):
        jitter = (i * 40503 & 0xFFFF) * stride >> 16  # a fixed stride would meet the same columns of a matrix
        sample[i] = keys[i * stride + jitter] & MAGNITUDE
    return np.int32(_kth(sample, rank)[0])


@compiled
def _histogram_floor(keys: Array, k: int) -> tuple[np.int32, int]:
    """The largest multiple of 2^20 that at least k keys reach, and how many do."""
    counts, odd = np.zeros(1 << 11, np.int32), np.zeros(1 << 11, np.int32)
    for i in range(0, keys.size - 1, 2):  # two histograms: like neighbours need not wait for each other
        counts[(keys[i] & MAGNITUDE) >> 20] += 1
        odd[(keys[i + 1] & MAGNITUDE) >> 20] += 1
    if keys.size % 2:
        odd[(keys[-1] & MAGNITUDE) >> 20] += 1
    counts += odd
    digit, count = (1 << 11) - 1, counts[(1 << 11) - 1]
    while count < k:
        digit -= 1
        count += counts[digit]
    return np.int32(digit << 20), count


@compiled
def _collect(keys: Array, floor: np.int32, limit: int) -> Array:
    """The ascending positions of keys >= floor; empty when there are more than ``limit``."""
    places = np.empty(limit + BLOCK, np.int32)
    count = 0
    for start in range(0, keys.size, BLOCK):
        block = keys[start : start + BLOCK]
        if peak_bits(block) >= floor:
            for i in range(block.size):  # without a branch: hits are too irregular to predict
                places[count] = start + i
                count += (block[i] & MAGNITUDE) >= floor
            if count > limit:
                return places[:0]
    return places[:count]


@compiled
def _at_least(keys: Array, floor: np.int32) -> Array:
    return _collect(keys, floor, _count(keys, floor))


@compiled
def _count(keys: Array, floor: np.int32) -> int:
    count = 0
    for i in range(keys.size):
        count += (keys[i] & MAGNITUDE) >= floor
    return count


@compiled
def _kth(keys: Array, k: int) -> tuple[int, int]:
    """The k-th largest of non-negative keys, and how many keys equal to it belong to the k largest.

    Digit by digit from the top (11, 10 and 10 bits), counting the keys that share the digits found so far.
    """
    threshold, left, shift, width = 0, k, 31, 11
    while shift > 0:
        counts = np.zeros(1 << width, np.int64)
        low = shift - width
        for i in range(keys.size):
            if keys[i] >> shift == threshold >> shift:
                counts[(keys[i] >> low) & ((1 << width) - 1)] += 1
        digit = (1 << width) - 1
        while counts[digit] < left:
            left -= counts[digit]
            digit -= 1
        threshold |= digit << low
        shift, width = low, 10
    return threshold, left
