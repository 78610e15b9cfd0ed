"""The primitives as numba kernels for CPU tensors: the reference's bytes, in one pass over memory.

Compiled once and cached on disk. No fast-math: every operation rounds as the reference's does. Ranges of blocks
run on a plain thread pool of torch's size (the kernels release the GIL), because numba's own pools spin while
they wait and take the cores from torch and from other ranks.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

INFINITY = np.int32(0x7F800000)  # bits of +inf as int32: magnitudes order like their bits, and NaN lies above
MAGNITUDE = np.int32(0x7FFFFFFF)
TINY = np.float32(torch.finfo(torch.float32).tiny)
ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds half to even, as torch.round does
PACKED_TOGETHER = 64  # codes: whole bytes whatever their width, so that threads write to different bytes
WORTH_A_THREAD = 1 << 18  # elements: below, handing work over costs more than it saves

Array = npt.NDArray[np.generic]
_kernel = numba.njit(cache=True, nogil=True, error_model="numpy")


def absmax_quantize(rows: Tensor, block_size: int, codes: Tensor, scales: Tensor, levels: int = 127) -> None:
    """As `reference.absmax_quantize`, for CPU rows."""
    rows = rows.float().contiguous()
    for row in range(rows.shape[0]):
        values, bits = rows[row].numpy(), rows[row].view(torch.int32).numpy()
        arrays = (values, bits, block_size, np.float32(levels), codes[row].numpy(), scales[row].numpy())
        _over_blocks(_quantize, scales.shape[1], block_size, *arrays)


def absmax_dequantize(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """As `reference.absmax_dequantize`, for CPU codes."""
    values = torch.empty(codes.shape, dtype=torch.float32)
    for row in range(codes.shape[0]):
        _sum_rows(codes[row : row + 1], scales[row : row + 1], block_size, values[row])
    return values


def absmax_dequantize_sum(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """As `reference.absmax_dequantize_sum`, for CPU codes."""
    total = torch.empty(codes.shape[1])
    _sum_rows(codes, scales, block_size, total)
    return total


def pack(codes: Tensor, bits: int, packed: Tensor) -> None:
    """As `reference.pack`, for CPU codes."""
    assert packed.stride(1) == 1 or packed.shape[1] <= 1
    wide = codes.contiguous()
    for row in range(codes.shape[0]):
        source, target = wide[row].numpy(), packed[row].numpy()
        _over_blocks(_pack, math.ceil(source.size / PACKED_TOGETHER), PACKED_TOGETHER, source, bits, target)


def unpack(packed: Tensor, bits: int, n: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """As `reference.unpack`, for CPU bytes."""
    codes = torch.empty(packed.shape[0], n, dtype=dtype)
    bytes_ = packed.contiguous()
    for row in range(packed.shape[0]):
        _over_blocks(
            _unpack, math.ceil(n / PACKED_TOGETHER), PACKED_TOGETHER, bytes_[row].numpy(), bits, codes[row].numpy()
        )
    return codes


def random_bits(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """As `reference.random_bits`, on CPU."""
    words = torch.empty(n, dtype=torch.int32)
    _over_blocks(_random, n, 1, np.uint32(key[0]), np.uint32(key[1]), words.numpy())
    return words


def uniform(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """As `reference.uniform`, on CPU."""
    numbers = torch.empty(n)
    _over_blocks(_uniform, n, 1, np.uint32(key[0]), np.uint32(key[1]), numbers.numpy())
    return numbers


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
    _over_blocks(_dequantize, scales.shape[1], block_size, *arrays)


def _over_blocks(kernel: Callable[..., None], num_blocks: int, block_size: int, *arguments: object) -> None:
    """``kernel(first, last, *arguments)`` over all blocks, shared out among torch's threads."""
    parts = min(torch.get_num_threads(), num_blocks, num_blocks * block_size // WORTH_A_THREAD)
    if parts <= 1:
        kernel(0, num_blocks, *arguments)
        return
    bounds = [num_blocks * part // parts for part in range(parts + 1)]
    pool = _pool(torch.get_num_threads())
    for done in [pool.submit(kernel, a, b, *arguments) for a, b in itertools.pairwise(bounds)]:
        done.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="comm_compress")


@_kernel
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
        peak = _peak_bits(bits[start:end])
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


@_kernel
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


@_kernel
def _peak_bits(bits: Array) -> np.int32:
    peak = np.int32(0)
    for i in range(bits.size):
        peak = max(peak, np.int32(bits[i] & MAGNITUDE))
    return np.int32(peak)


@_kernel
def _round(values: Array, inverse: np.float32, codes: Array) -> None:
    for i in range(values.size):
        codes[i] = np.int8(np.int32((values[i] * inverse + ROUND) - ROUND))


@_kernel
def _multiply_add(codes: Array, scale: np.float32, out: Array) -> None:
    for i in range(codes.size):
        out[i] += np.float32(codes[i]) * scale


@_kernel
def _pack(first: int, last: int, codes: Array, bits: int, packed: Array) -> None:
    place = first * PACKED_TOGETHER * bits // 8
    waiting, count, mask = np.uint64(0), 0, np.uint64((1 << bits) - 1)
    for i in range(first * PACKED_TOGETHER, min(last * PACKED_TOGETHER, codes.size)):
        waiting |= (np.uint64(codes[i]) & mask) << np.uint64(count)
        count += bits
        while count >= 8:
            packed[place] = np.uint8(waiting & np.uint64(255))
            waiting >>= np.uint64(8)
            count -= 8
            place += 1
    if count:
        packed[place] = np.uint8(waiting)


@_kernel
def _unpack(first: int, last: int, packed: Array, bits: int, codes: Array) -> None:
    place = first * PACKED_TOGETHER * bits // 8
    waiting, count, mask = np.uint64(0), 0, np.uint64((1 << bits) - 1)
    for i in range(first * PACKED_TOGETHER, min(last * PACKED_TOGETHER, codes.size)):
        while count < bits:
            waiting |= np.uint64(packed[place]) << np.uint64(count)
            place += 1
            count += 8
        codes[i] = np.int32(waiting & mask)
        waiting >>= np.uint64(bits)
        count -= bits


@_kernel
def _mix(word: np.uint32) -> np.uint32:
    word = np.uint32((word ^ (word >> np.uint32(16))) * np.uint32(0x21F0AAAD))
    word = np.uint32((word ^ (word >> np.uint32(15))) * np.uint32(0xD35A2D97))
    return np.uint32(word ^ (word >> np.uint32(15)))


@_kernel
def _hash(counter: np.uint32, low: np.uint32, high: np.uint32) -> np.uint32:
    word = np.uint32(_mix(counter ^ low) * np.uint32(0x9E3779B1) + low)
    word = np.uint32(_mix(word ^ high) * np.uint32(0x9E3779B1) + high)
    return np.uint32(_mix(word))


@_kernel
def _random(first: int, last: int, low: np.uint32, high: np.uint32, words: Array) -> None:
    for i in range(first, last):
        words[i] = np.int32(_hash(np.uint32(i), low, high))


@_kernel
def _uniform(first: int, last: int, low: np.uint32, high: np.uint32, numbers: Array) -> None:
    for i in range(first, last):
        numbers[i] = np.float32(_hash(np.uint32(i), low, high) >> np.uint32(8)) * np.float32(2.0**-24)
