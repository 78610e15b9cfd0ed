"""Norms of blocks, stochastic rounding and the Hadamard rotation as numba kernels: the reference's bits."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.numba_tools import TINY, Array, compiled, over_blocks, peak_bits
from comm_compress.kernels.quantize_reference import ROTATED
from comm_compress.kernels.random_cpu import hash_counter

HALVINGS = int(math.log2(ROTATED))
NORMALISE = np.float32(ROTATED**-0.5)
UNIT = np.float32(2.0**-24)


def block_norms(rows: Tensor, block_size: int, p: float) -> Tensor:
    """As `quantize_reference.block_norms`, for CPU rows."""
    assert p in (1, 2, math.inf)
    rows = rows.float().contiguous()
    norms = torch.empty(rows.shape[0], math.ceil(rows.shape[1] / block_size), dtype=torch.float64)
    for row, out in zip(rows, norms, strict=True):
        if p == math.inf:
            over_blocks(_peaks, out.numel(), block_size, row.view(torch.int32).numpy(), block_size, out.numpy())
        else:
            over_blocks(_norms, out.numel(), block_size, row.numpy(), block_size, p == 2, out.numpy())
    return norms


def stochastic_quantize(
    rows: Tensor, scales: Tensor, block_size: int, levels: int, key: tuple[int, int], codes: Tensor, offset: float = 0
) -> None:
    """As `quantize_reference.stochastic_quantize`, for CPU rows."""
    rows = rows.float().contiguous()
    settings = (block_size, np.float32(levels), np.float32(offset), np.uint32(key[0]), np.uint32(key[1]))
    for row in range(rows.shape[0]):
        arrays = (rows[row].numpy(), scales[row].contiguous().numpy(), codes[row].numpy())
        over_blocks(_dither, scales.shape[1], block_size, row * rows.shape[1], *settings, *arrays)


def hadamard(rows: Tensor) -> Tensor:
    """As `quantize_reference.hadamard`, for CPU rows."""
    rotated = torch.empty(rows.shape, dtype=torch.float32).copy_(rows)
    for row in rotated:
        over_blocks(_rotate, row.numel() // ROTATED, ROTATED, row.numpy())
    return rotated


@compiled
def _peaks(first: int, last: int, bits: Array, block_size: int, peaks: Array) -> None:
    for block in range(first, last):
        peak = peak_bits(bits[block * block_size : min((block + 1) * block_size, bits.size)])
        peaks[block] = np.int32(peak).view(np.float32)


@compiled
def _norms(first: int, last: int, values: Array, block_size: int, squares: bool, norms: Array) -> None:
    terms = np.empty(block_size, np.float64)
    for block in range(first, last):
        start, end = block * block_size, min((block + 1) * block_size, values.size)
        terms[end - start :] = 0
        if squares:
            _square(values[start:end], terms)
        else:
            _magnitude(values[start:end], terms)
        length = block_size
        while length > 1:
            half = (length + 1) // 2
            _add(terms[half:length], terms[:half])
            length = half
        norms[block] = np.sqrt(terms[0]) if squares else terms[0]


@compiled
def _square(values: Array, terms: Array) -> None:
    for i in range(values.size):
        terms[i] = np.float64(values[i]) * np.float64(values[i])


@compiled
def _magnitude(values: Array, terms: Array) -> None:
    for i in range(values.size):
        terms[i] = abs(np.float64(values[i]))


@compiled
def _add(source: Array, target: Array) -> None:
    for i in range(source.size):
        target[i] += source[i]


@compiled
def _dither(
    first: int,
    last: int,
    counter: int,
    block_size: int,
    levels: np.float32,
    offset: np.float32,
    low: np.uint32,
    high: np.uint32,
    values: Array,
    scales: Array,
    codes: Array,
) -> None:
    for block in range(first, last):
        start, end = block * block_size, min((block + 1) * block_size, values.size)
        if TINY <= scales[block] < np.inf:
            inverse = np.float32(1) / scales[block]
            _round_randomly(
                values[start:end], inverse, offset, levels, np.uint32(counter + start), low, high, codes[start:end]
            )
        else:
            codes[start:end] = 0


@compiled
def _round_randomly(
    values: Array,
    inverse: np.float32,
    offset: np.float32,
    levels: np.float32,
    counter: np.uint32,
    low: np.uint32,
    high: np.uint32,
    codes: Array,
) -> None:
    for i in range(values.size):
        t = values[i] * inverse + offset
        whole = np.floor(t)
        noise = np.float32(hash_counter(np.uint32(counter + np.uint32(i)), low, high) >> np.uint32(8)) * UNIT
        rounded = whole + np.float32(noise < t - whole)
        codes[i] = np.int8(np.int32(max(-levels, min(levels, rounded))))


@compiled
def _rotate(first: int, last: int, values: Array) -> None:
    for block in range(first, last):
        x = values[block * ROTATED : (block + 1) * ROTATED]
        for i in range(ROTATED):
            x[i] *= NORMALISE
        for halving in range(HALVINGS):
            distance = 1 << halving
            for start in range(0, ROTATED, 2 * distance):
                for i in range(start, start + distance):
                    a, b = x[i], x[i + distance]
                    x[i], x[i + distance] = a + b, a - b
