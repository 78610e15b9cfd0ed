"""Powers of two and trits as numba kernels: the reference's bytes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.formats_reference import MANTISSA, ONE, TRITS
from comm_compress.kernels.numba_tools import INFINITY, MAGNITUDE, Array, compiled, over_blocks
from comm_compress.kernels.random_cpu import hash_counter

HALF, WHOLE = np.int32(ONE >> 1), np.float32(ONE)
MASK = np.uint32(ONE - 1)
PLACES = np.int32(MANTISSA)


def powers_of_two(rows: Tensor, lowest: Tensor, key: tuple[int, int] | None) -> Tensor:
    """As `formats_reference.powers_of_two`, for CPU rows."""
    bits = rows.float().contiguous().view(torch.int32)
    places = torch.empty(rows.shape, dtype=torch.uint8)
    low, high = (np.uint32(word) for word in key or (0, 0))
    for row, first_field in enumerate(lowest.tolist()):
        settings = (row * rows.shape[1], np.int32(first_field), key is not None, low, high)
        over_blocks(_powers, rows.shape[1], 1, *settings, bits[row].numpy(), places[row].numpy())
    return places


def signed_powers(places: Tensor, lowest: Tensor, negative: Tensor) -> Tensor:
    """As `formats_reference.signed_powers`, for CPU codes."""
    bits = torch.empty(places.shape, dtype=torch.int32)
    for row, first_field in enumerate(lowest.tolist()):
        arrays = (places[row].contiguous().numpy(), negative[row].contiguous().numpy(), bits[row].numpy())
        over_blocks(_signed, bits.shape[1], 1, np.int32(first_field), *arrays)
    return bits.view(torch.float32)


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
def _powers(
    first: int,
    last: int,
    counter: int,
    first_field: np.int32,
    random: bool,
    low: np.uint32,
    high: np.uint32,
    bits: Array,
    places: Array,
) -> None:
    if random:
        _powers_at_random(bits[first:last], first_field, np.uint32(counter + first), low, high, places[first:last])
    else:
        _nearest_powers(bits[first:last], first_field, places[first:last])


@compiled
def _powers_at_random(
    bits: Array, first_field: np.int32, counter: np.uint32, low: np.uint32, high: np.uint32, places: Array
) -> None:
    for i in range(bits.size):
        noise = np.int32(hash_counter(np.uint32(counter + np.uint32(i)), low, high) & MASK)
        places[i] = _place(np.int32(bits[i] & MAGNITUDE), first_field, noise)


@compiled
def _nearest_powers(bits: Array, first_field: np.int32, places: Array) -> None:
    for i in range(bits.size):
        places[i] = _place(np.int32(bits[i] & MAGNITUDE), first_field, HALF)


@compiled
def _place(magnitude: np.int32, first_field: np.int32, noise: np.int32) -> np.uint8:
    to_first = np.int32((np.int32(254) - first_field) << PLACES).view(np.float32)
    share = np.int32(magnitude).view(np.float32) * to_first
    share = share if share < np.float32(1) else np.float32(1)
    below = np.int32(np.int32(np.int32(share * WHOLE) + noise) >> PLACES)
    above = np.int32(np.int32(min(magnitude, INFINITY) + noise) >> PLACES)
    above = np.int32(min(above, np.int32(254)) - first_field + np.int32(1))
    place = below if np.int32(magnitude >> PLACES) < first_field else above
    return np.uint8(place if magnitude < INFINITY else np.int32(255))


@compiled
def _signed(first: int, last: int, first_field: np.int32, places: Array, negative: Array, bits: Array) -> None:
    _signed_bits(places[first:last], np.int32(first_field - 1), negative[first:last], bits[first:last])


@compiled
def _signed_bits(places: Array, shift: np.int32, negative: Array, bits: Array) -> None:
    for i in range(places.size):
        place = np.int32(places[i])
        field = np.int32(place + shift) if place > 0 else np.int32(0)
        bits[i] = np.int32((field << PLACES) | (np.int32(negative[i]) << np.int32(31)))


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
