"""Powers of two and trits as numba kernels: the reference's bytes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.cpu import INFINITY, MAGNITUDE, Array, _hash, _kernel, _over_blocks
from comm_compress.kernels.formats_reference import MANTISSA, ONE, TRITS

HALF, WHOLE = np.int32(ONE >> 1), np.float32(ONE)
MASK = np.uint32(ONE - 1)
PLACES = np.int32(MANTISSA)


def powers_of_two(rows: Tensor, lowest: Tensor, key: tuple[int, int] | None) -> Tensor:
    """As `formats_reference.powers_of_two`, for CPU rows."""
    bits = rows.float().contiguous().view(torch.int32)
    fields = torch.empty(rows.shape, dtype=torch.uint8)
    low, high = (np.uint32(word) for word in key or (0, 0))
    for row, floor in enumerate(lowest.tolist()):
        arrays = (bits[row].numpy(), fields[row].numpy())
        settings = (row * rows.shape[1], np.int32(floor), key is not None, low, high)
        _over_blocks(_powers, rows.shape[1], 1, *settings, *arrays)
    return fields


def signed_powers(exponents: Tensor, negative: Tensor) -> Tensor:
    """As `formats_reference.signed_powers`, for CPU codes."""
    bits = torch.empty(exponents.shape, dtype=torch.int32)
    for row in range(bits.shape[0]):
        arrays = (exponents[row].contiguous().numpy(), negative[row].contiguous().numpy(), bits[row].numpy())
        _over_blocks(_signed, bits.shape[1], 1, *arrays)
    return bits.view(torch.float32)


def pack_trits(codes: Tensor, packed: Tensor) -> None:
    """As `formats_reference.pack_trits`, for CPU codes."""
    for row in range(codes.shape[0]):
        _over_blocks(_pack_trits, packed.shape[1], TRITS, codes[row].contiguous().numpy(), packed[row].numpy())


def unpack_trits(packed: Tensor, n: int) -> Tensor:
    """As `formats_reference.unpack_trits`, for CPU bytes."""
    codes = torch.empty(packed.shape[0], n, dtype=torch.int8)
    for row in range(packed.shape[0]):
        _over_blocks(_unpack_trits, math.ceil(n / TRITS), TRITS, packed[row].contiguous().numpy(), codes[row].numpy())
    return codes


@_kernel
def _powers(
    first: int,
    last: int,
    counter: int,
    floor: np.int32,
    random: bool,
    low: np.uint32,
    high: np.uint32,
    bits: Array,
    fields: Array,
) -> None:
    to_units = np.int32((np.int32(254) - floor) << PLACES).view(np.float32)
    for i in range(first, last):
        magnitude = np.int32(bits[i] & MAGNITUDE)
        noise = HALF
        if random:
            noise = np.int32(_hash(np.uint32(counter + i), low, high) & MASK)
        if magnitude >= INFINITY:
            fields[i] = 255
        elif (magnitude >> PLACES) < floor:
            share = np.int32(magnitude.view(np.float32) * to_units * WHOLE)
            fields[i] = np.int32((share + noise) >> PLACES) * floor
        else:
            fields[i] = min(np.int32((magnitude + noise) >> PLACES), np.int32(254))


@_kernel
def _signed(first: int, last: int, exponents: Array, negative: Array, bits: Array) -> None:
    for i in range(first, last):
        bits[i] = np.int32(np.uint32(exponents[i]) << np.uint32(23) | np.uint32(negative[i]) << np.uint32(31))


@_kernel
def _pack_trits(first: int, last: int, codes: Array, packed: Array) -> None:
    for j in range(first, last):
        byte, power = 0, 1
        for i in range(j * TRITS, min((j + 1) * TRITS, codes.size)):
            byte += (codes[i] + 1) * power
            power *= 3
        packed[j] = np.uint8(byte)


@_kernel
def _unpack_trits(first: int, last: int, packed: Array, codes: Array) -> None:
    for j in range(first, last):
        byte = np.int32(packed[j])
        for i in range(j * TRITS, min((j + 1) * TRITS, codes.size)):
            codes[i] = np.int8(byte % 3 - 1)
            byte //= 3
