"""Bit streams of codes of one width as numba kernels."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.tools.compiled import Array, compiled, inlined
from comm_compress.kernels.tools.threads import over_blocks

PACKED_TOGETHER = 64  # codes: whole bytes whatever their width, so that threads write to different bytes


def pack(codes: Tensor, bits: int, packed: Tensor) -> None:
    assert packed.stride(1) == 1 or packed.shape[1] <= 1
    wide = codes.contiguous()
    for row in range(codes.shape[0]):
        source, target = wide[row].numpy(), packed[row].numpy()
        over_blocks(_pack, math.ceil(source.size / PACKED_TOGETHER), PACKED_TOGETHER, source, bits, target)


def unpack(packed: Tensor, bits: int, n: int, dtype: torch.dtype = torch.int32) -> Tensor:
    codes = torch.empty(packed.shape[0], n, dtype=dtype)
    bytes_ = packed.contiguous()
    for row in range(packed.shape[0]):
        over_blocks(
            _unpack, math.ceil(n / PACKED_TOGETHER), PACKED_TOGETHER, bytes_[row].numpy(), bits, codes[row].numpy()
        )
    return codes


@inlined
def flush_bytes(waiting: np.uint64, count: np.int64, packed: Array, place: int) -> tuple[np.uint64, np.int64, int]:
    """Write the whole bytes among the low ``count`` bits that wait; returns what still waits, its bits, the place."""
    while count >= 8:
        packed[place] = np.uint8(waiting & np.uint64(255))
        waiting >>= np.uint64(8)
        count -= 8
        place += 1
    return waiting, count, place


@inlined
def fetch_bytes(
    waiting: np.uint64, count: np.int64, bits: np.int64, packed: Array, place: int
) -> tuple[np.uint64, np.int64, int]:
    """Read whole bytes until at least ``bits`` wait; returns what waits, its bits, the place."""
    while count < bits:
        waiting |= np.uint64(packed[place]) << np.uint64(count)
        place += 1
        count += 8
    return waiting, count, place


@compiled
def _pack(first: int, last: int, codes: Array, bits: int, packed: Array) -> None:
    place = first * PACKED_TOGETHER * bits // 8
    waiting, count, mask = np.uint64(0), np.int64(0), np.uint64((1 << bits) - 1)
    for i in range(first * PACKED_TOGETHER, min(last * PACKED_TOGETHER, codes.size)):
        waiting |= (np.uint64(codes[i]) & mask) << np.uint64(count)
        count += np.int64(bits)
        waiting, count, place = flush_bytes(waiting, count, packed, place)
    if count:
        packed[place] = np.uint8(waiting)


@compiled
def _unpack(first: int, last: int, packed: Array, bits: int, codes: Array) -> None:
    place = first * PACKED_TOGETHER * bits // 8
    waiting, count, mask = np.uint64(0), np.int64(0), np.uint64((1 << bits) - 1)
    for i in range(first * PACKED_TOGETHER, min(last * PACKED_TOGETHER, codes.size)):
        waiting, count, place = fetch_bytes(waiting, count, np.int64(bits), packed, place)
        codes[i] = np.int32(waiting & mask)
        waiting >>= np.uint64(bits)
        count -= np.int64(bits)
