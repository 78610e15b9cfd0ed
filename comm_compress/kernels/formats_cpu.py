"""Trits as numba kernels: the reference's bytes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.formats_reference import TRITS
from comm_compress.kernels.numba_tools import Array, compiled
from comm_compress.kernels.threads import over_blocks


def pack_trits(codes: Tensor, packed: Tensor) -> None:
    """As `formats_reference.pack_trits`, for CPU codes."""
    for row in range(codes.shape[0]):
        over_blocks(_pack_trits, packed.shape[1], TRITS, codes[row].contiguous().numpy(), packed[row].numpy())


def unpack_trits(packed: Tensor, n: int) -> Tensor:
    """As `formats_reference.unpack_trits`, for CPU bytes."""
    codes = torch.empty(packed.shape[0], n, dtype=torch.int8)
    for row in range(packed.shape[0]):
        over_blocks(_unpack_trits, math.ceil(n / TRITS), TRITS, packed[row].contiguous().numpy(), codes[row].numpy())
    return codes


@compiled
def _pack_trits(first: int, last: int, codes: Array, packed: Array) -> None:
    for j in range(first, last):
        byte, power = 0, 1
        for i in range(j * TRITS, min((j + 1) * TRITS, codes.size)):
            byte += (codes[i] + 1) * power
            power *= 3
        packed[j] = np.uint8(byte)


@compiled
def _unpack_trits(first: int, last: int, packed: Array, codes: Array) -> None:
    for j in range(first, last):
        byte = np.int32(packed[j])
        for i in range(j * TRITS, min((j + 1) * TRITS, codes.size)):
            codes[i] = np.int8(byte % 3 - 1)
            byte //= 3
