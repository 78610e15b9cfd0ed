"""Integers times a scale for every block as numba kernels: the reference's bytes, in one pass over memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.numba_tools import INFINITY, TINY, Array, compiled, over_blocks, peak_bits

ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds half to even, as torch.round does


def absmax_quantize(rows: Tensor, block_size: int, codes: Tensor, scales: Tensor, levels: int = 127) -> None:
    """As `absmax_reference.absmax_quantize`, for CPU rows."""
    rows = rows.float().contiguous()
    for row in range(rows.shape[0]):
        values, bits = rows[row].numpy(), rows[row].view(torch.int32).numpy()
        arrays = (values, bits, block_size, np.float32(levels), codes[row].numpy(), scales[row].numpy())
        over_blocks(_quantize, scales.shape[1], block_size, *arrays)


def absmax_dequantize(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """As `absmax_reference.absmax_dequantize`, for CPU codes."""
    values = torch.empty(codes.shape, dtype=torch.float32)
    for row in range(codes.shape[0]):
        _sum_rows(codes[row : row + 1], scales[row : row + 1], block_size, values[row])
    return values


def absmax_dequantize_sum(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """As `absmax_reference.absmax_dequantize_sum`, for CPU codes."""
    total = torch.empty(codes.shape[1])
    _sum_rows(codes, scales, block_size, total)
    return total


def _sum_rows(codes: Tensor, scales: Tensor, block_size: int, out: Tensor) -> None:
    num_rows, n = codes.shape
    if num_rows == 0 or n == 0:
        out.zero_()
        return
    assert codes.stride(1) == 1
    stride = codes.stride(0)
    # One array over all rows and the gaps between them: numba vectorises contiguous slices, not strided ones.
    flat = codes.as_strided(((num_rows - 1) * stride + n,), (1,))
    arrays = (flat.numpy(), stride, num_rows, scales.contiguous().numpy(), block_size, out.numpy())
    over_blocks(_dequantize, scales.shape[1], block_size, *arrays)


@compiled
def _quantize(
    first: int,
    last: int,
    values: Array,
    bits: Array,
    block_size: int,
    levels: np.float32,
    codes: Array,
    scales: Array,
) -> None:
    for block in range(first, last):
        start, end = block * block_size, min((block + 1) * block_size, values.size)
        peak = peak_bits(bits[start:end])
        scale = np.int32(peak).view(np.float32) / levels
        if peak >= INFINITY:
            scales[block] = np.float32(np.nan)
            codes[start:end] = 0
        elif scale < TINY:
            scales[block] = np.float32(0)
            codes[start:end] = 0
        else:
            scales[block] = scale
            _round(values[start:end], np.float32(1) / scale, codes[start:end])


@compiled
def _dequantize(
    first: int, last: int, codes: Array, stride: int, num_rows: int, scales: Array, block_size: int, out: Array
) -> None:
    for block in range(first, last):
        start, end = block * block_size, min((block + 1) * block_size, out.size)
        out[start:end] = 0
        for row in range(num_rows):
            begin = row * stride
            _multiply_add(codes[begin + start : begin + end], scales[row, block], out[start:end])


# The inner loops, over contiguous slices so that LLVM sees plain vectors.


@compiled
def _round(values: Array, inverse: np.float32, codes: Array) -> None:
    for i in range(values.size):
        codes[i] = np.int8(np.int32((values[i] * inverse + ROUND) - ROUND))


@compiled
def _multiply_add(codes: Array, scale: np.float32, out: Array) -> None:
    for i in range(codes.size):
        out[i] += np.float32(codes[i]) * scale
