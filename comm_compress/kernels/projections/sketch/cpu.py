"""Count-sketches as numba kernels: a block of 32 coordinates is a vector that is rotated, signed and added."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from comm_compress.kernels.elements.random.cpu import hash_counter
from comm_compress.kernels.projections.sketch.reference import WINDOW
from comm_compress.kernels.tools.compiled import Array, compiled, inlined
from comm_compress.kernels.tools.threads import over_blocks
from comm_compress.kernels.tools.vectors.vectors import LANES, load, negated, store

TILE = 32  # blocks that are worked on together: they stay in the first-level cache
assert WINDOW == LANES


def count_sketch(rows: Tensor, keys: Sequence[tuple[int, int]], out: Tensor) -> None:
    """Threads share out rows and keys."""
    out.zero_()
    over_blocks(_sketch, rows.shape[0] * len(keys), rows.shape[1], rows.contiguous().numpy(), _words(keys), out.numpy())


def estimate(sketch: Tensor, keys: Sequence[tuple[int, int]], out: Tensor) -> None:
    tile = TILE * WINDOW
    over_blocks(_estimate, math.ceil(out.numel() / tile), tile, sketch.contiguous().numpy(), _words(keys), out.numpy())


def _words(keys: Sequence[tuple[int, int]]) -> Array:
    return np.array(keys, dtype=np.uint32).reshape(-1, 2)


@compiled
def _sketch(first: int, last: int, rows: Array, keys: Array, out: Array) -> None:
    """Items are (row, key) pairs; a tile of a row is read once for all its keys."""
    num_keys, columns, n = keys.shape[0], out.shape[2], rows.shape[1]
    windows, turns, signs = np.empty(TILE, np.int64), np.empty(TILE, np.int64), np.empty(TILE, np.uint32)
    twice = np.zeros(2 * TILE * WINDOW, np.float32)  # every block, and the block again: rotated wherever one looks
    for row in range(first // num_keys, (last - 1) // num_keys + 1):
        values = rows[row]
        for start in range(0, n, TILE * WINDOW):
            blocks = _doubled(values, start, twice)
            for item in range(max(first, row * num_keys), min(last, (row + 1) * num_keys)):
                j = item % num_keys
                _place(start // WINDOW, keys[j, 0], keys[j, 1], columns // WINDOW, windows, turns, signs)
                target = out[row, j]
                for b in range(blocks):
                    rotated = signs[b] << np.uint32(turns[b]) | signs[b] >> np.uint32((WINDOW - turns[b]) % WINDOW)
                    source, place = (2 * b + 1) * WINDOW - turns[b], windows[b]
                    x = negated(rotated, load(twice, source, source + WINDOW))
                    store(target, place, place + WINDOW, load(target, place, place + WINDOW) + x)


@compiled
def _doubled(values: Array, start: int, twice: Array) -> int:
    """Every block of the tile twice, the last one of the row with zeros; returns how many blocks that is."""
    blocks = (min(TILE * WINDOW, values.size - start) + WINDOW - 1) // WINDOW
    for b in range(blocks):
        _double(values, start + b * WINDOW, values.size, twice, 2 * b * WINDOW)
    return blocks


@compiled
def _double(values: Array, start: int, end: int, twice: Array, place: int) -> None:
    x = load(values, start, end)
    store(twice, place, place + WINDOW, x)
    store(twice, place + WINDOW, place + 2 * WINDOW, x)


@compiled
def _place(
    block: int, low: np.uint32, high: np.uint32, num_windows: int, windows: Array, turns: Array, signs: Array
) -> None:
    """For each block of a tile: the first column of its window, its rotation, and the bits of its signs."""
    for b in range(windows.size):
        counter = np.uint32(2 * (block + b))
        signs[b] = hash_counter(counter, low, high)
        word = hash_counter(counter + np.uint32(1), low, high)
        windows[b] = np.int64((np.uint64(word) * np.uint64(num_windows)) >> np.uint64(32)) * WINDOW
        turns[b] = np.int64(word & np.uint32(WINDOW - 1))


@compiled
def _estimate(first: int, last: int, sketch: Array, keys: Array, out: Array) -> None:
    num_keys, columns = sketch.shape
    windows, turns, signs = np.empty(TILE, np.int64), np.empty(TILE, np.int64), np.empty(TILE, np.uint32)
    twice = np.empty(2 * TILE * WINDOW, np.float32)
    found = np.empty((num_keys, TILE * WINDOW), np.float32)
    for tile in range(first, last):
        start, size = tile * TILE * WINDOW, min(TILE * WINDOW, out.size - tile * TILE * WINDOW)
        for j in range(num_keys):
            _place(start // WINDOW, keys[j, 0], keys[j, 1], columns // WINDOW, windows, turns, signs)
            row, target = sketch[j], found[j]
            for b in range(TILE):
                _double(row, windows[b], windows[b] + WINDOW, twice, 2 * b * WINDOW)
            for b in range(TILE):
                source, place = 2 * b * WINDOW + turns[b], b * WINDOW
                store(target, place, place + WINDOW, negated(signs[b], load(twice, source, source + WINDOW)))
        _medians(found, out[start : start + size])


@compiled
def _medians(found: Array, out: Array) -> None:
    """The median of each coordinate's estimates ``[m, ...]``, all coordinates side by side; zero gets no sign."""
    m, zero = found.shape[0], np.float32(0)
    if m == 3:
        a, b, c = found[0], found[1], found[2]
        for i in range(out.size):
            out[i] = _median(a[i], b[i], c[i]) + zero
    elif m == 5:
        a, b, c, d, e = found[0], found[1], found[2], found[3], found[4]
        for i in range(out.size):  # neither the least nor the greatest of four is the median of five
            low = max(min(a[i], b[i]), min(c[i], d[i]))
            high = min(max(a[i], b[i]), max(c[i], d[i]))
            out[i] = _median(low, high, e[i]) + zero
    else:
        for phase in range(m):  # odd-even transposition sort
            for j in range(phase % 2, m - 1, 2):
                _order(found[j], found[j + 1])
        middle = found[m // 2]
        for i in range(out.size):
            out[i] = middle[i] + zero


@inlined
def _median(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    return max(min(a, b), min(max(a, b), c))


@compiled
def _order(low: Array, high: Array) -> None:
    for i in range(low.size):
        a, b = low[i], high[i]
        low[i], high[i] = min(a, b), max(a, b)
