"""Codes of three states as numba kernels."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.packing.trits.reference import TRITS
from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.threads import over_blocks

assert TRITS == 5, "each has an expression of its own below"
ONE, TWO, THREE, FOUR, FIVE = (np.uint64(number) for number in range(1, 6))
DIGITS = np.array([[byte // 3**place % 3 - 1 for place in range(TRITS)] for byte in range(256)], np.int8)


def pack(codes: Tensor, packed: Tensor) -> None:
    for row in range(codes.shape[0]):
        over_blocks(_pack, packed.shape[1], TRITS, codes[row].contiguous().numpy(), packed[row].numpy())


def unpack(packed: Tensor, n: int) -> Tensor:
    codes = torch.empty(packed.shape[0], n, dtype=torch.int8)
    for row in range(packed.shape[0]):
        arrays = (packed[row].contiguous().numpy(), DIGITS, codes[row].numpy())
        over_blocks(_unpack, math.ceil(n / TRITS), TRITS, *arrays)
    return codes


# Whole bytes are written out digit by digit, in int32 and with unsigned places: as a loop over digits, packing took
# forty times as long.


@compiled
def _pack(first: int, last: int, codes: Array, packed: Array) -> None:
    whole = min(last, codes.size // TRITS)
    for j in range(np.uint64(first), np.uint64(whole)):
        i = j * FIVE
        byte = np.int32(codes[i]) + np.int32(3) * np.int32(codes[i + ONE])
        byte += np.int32(9) * np.int32(codes[i + TWO]) + np.int32(27) * np.int32(codes[i + THREE])
        packed[j] = np.uint8(byte + np.int32(81) * np.int32(codes[i + FOUR]) + np.int32(121))
    for k in range(whole, last):
        rest, power = 0, 1
        for code in codes[k * TRITS :]:
            rest += (code + 1) * power
            power *= 3
        packed[k] = np.uint8(rest)


@compiled
def _unpack(first: int, last: int, packed: Array, digits: Array, codes: Array) -> None:
    whole = min(last, codes.size // TRITS)
    for j in range(np.uint64(first), np.uint64(whole)):
        i, of_byte = j * FIVE, digits[np.uint64(packed[j])]
        codes[i], codes[i + ONE], codes[i + TWO] = of_byte[0], of_byte[1], of_byte[2]
        codes[i + THREE], codes[i + FOUR] = of_byte[3], of_byte[4]
    for k in range(whole, last):
        for place in range(codes.size - k * TRITS):
            codes[k * TRITS + place] = digits[packed[k], place]
