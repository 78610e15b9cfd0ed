"""Count-sketches as numba kernels for CPU tensors: hashes and medians a block at a time, as plain vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.numba_tools import Array, compiled, over_blocks
from comm_compress.kernels.random_cpu import hash_counter

BLOCK = 1024  # coordinates whose hashes, or estimates, are held at a time: they stay in the first-level cache


def count_sketch(rows: Tensor, keys: Sequence[tuple[int, int]], columns: int) -> Tensor:
    """As `sketch_reference.count_sketch`, for float32 CPU rows."""
    rows = rows.contiguous()
    num_rows, n = rows.shape
    out = torch.zeros(num_rows, len(keys), columns)
    words = _words(keys)
    over_blocks(_sketch, num_rows * len(keys), n, rows.numpy(), words, out.numpy())
    return out


def count_sketch_estimate(sketch: Tensor, keys: Sequence[tuple[int, int]], n: int) -> Tensor:
    """As `sketch_reference.count_sketch_estimate`, for a CPU sketch."""
    out = torch.empty(n)
    over_blocks(_estimate, math.ceil(n / BLOCK), BLOCK, sketch.contiguous().numpy(), _words(keys), out.numpy())
    return out


def _words(keys: Sequence[tuple[int, int]]) -> Array:
    return np.array(keys, dtype=np.uint32).reshape(-1, 2)


@compiled
def _sketch(first: int, last: int, rows: Array, keys: Array, out: Array) -> None:
    buckets, signed = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.float32)
    num_keys, columns, n = keys.shape[0], out.shape[2], rows.shape[1]
    for item in range(first, last):
        row, j = item // num_keys, item % num_keys
        target = out[row, j]
        for start in range(0, n, BLOCK):
            values = rows[row, start : min(start + BLOCK, n)]
            _place(start, keys[j, 0], keys[j, 1], columns, buckets[: values.size], signed[: values.size])
            for i in range(values.size):
                target[buckets[i]] += values[i] * signed[i]


@compiled
def _estimate(first: int, last: int, sketch: Array, keys: Array, out: Array) -> None:
    num_keys, columns = sketch.shape
    buckets, signs = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.float32)
    found = np.empty((num_keys, BLOCK), np.float32)
    for block in range(first, last):
        start, size = block * BLOCK, min(BLOCK, out.size - block * BLOCK)
        for j in range(num_keys):
            _place(start, keys[j, 0], keys[j, 1], columns, buckets[:size], signs[:size])
            row, target = sketch[j], found[j, :size]
            for i in range(size):
                target[i] = row[buckets[i]] * signs[i]
        for phase in range(num_keys):  # odd-even transposition sort, every coordinate of the block side by side
            for j in range(phase % 2, num_keys - 1, 2):
                _order(found[j, :size], found[j + 1, :size])
        _copy_unsigned_zero(found[num_keys // 2, :size], out[start : start + size])


@compiled
def _place(start: int, low: np.uint32, high: np.uint32, columns: int, buckets: Array, signs: Array) -> None:
    for i in range(buckets.size):
        word = hash_counter(np.uint32(start + i), low, high)
        buckets[i] = np.int32((np.uint64(word) * np.uint64(columns)) >> np.uint64(32))
        signs[i] = np.float32(1 - 2 * np.int32(word & np.uint32(1)))


@compiled
def _order(low: Array, high: Array) -> None:
    for i in range(low.size):
        a, b = low[i], high[i]
        low[i], high[i] = (a, b) if a <= b else (b, a)


@compiled
def _copy_unsigned_zero(values: Array, out: Array) -> None:
    for i in range(out.size):
        out[i] = values[i] + np.float32(0)
