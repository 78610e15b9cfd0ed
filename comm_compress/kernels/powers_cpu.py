"""Signed powers of two in 9 bits or 8 as numba kernels: the reference's bytes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.numba_tools import INFINITY, MAGNITUDE, Array, compiled
from comm_compress.kernels.powers_reference import (
    LARGEST,
    MANTISSA,
    NOT_FINITE,
    ONE,
    SIGN,
    lowest_fields,
    window_scales,
)
from comm_compress.kernels.random_cpu import hash_counter
from comm_compress.kernels.residual import Residual
from comm_compress.kernels.residual_cpu import target_arrays
from comm_compress.kernels.threads import over_blocks
from comm_compress.kernels.vectors import (
    LANES,
    below,
    bits_of,
    fma,
    larger,
    largest_bits,
    load,
    load_mask,
    load_powers,
    load_signed_powers,
    rows_in_line,
    splat,
    store,
    store_mask,
    where,
)

TILE = 1024  # elements worked on at a time, in the first cache
HALF, WHOLE, MASK = np.int32(ONE >> 1), np.float32(ONE), np.uint32(ONE - 1)
PLACES, TOP, BEYOND = np.int32(MANTISSA), np.int32(LARGEST), np.int32(255)


def encode_powers(
    rows: Tensor, key: tuple[int, int] | None, exponents: Tensor, signs: Tensor, residual: Residual | None = None
) -> None:
    """As `powers_reference.encode_powers`, for CPU rows."""
    rows = rows.contiguous()
    for row in range(rows.shape[0]):
        arrays = (*target_arrays(rows, residual, row), exponents[row].numpy(), signs[row].numpy())
        over_blocks(_encode_powers, _tiles(rows), TILE, *_noise(key, row * rows.shape[1]), *arrays)


def decode_powers(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    """As `powers_reference.decode_powers`, on CPU."""
    for row in range(out.shape[0]):
        _sum_powers(exponents[row : row + 1], signs[row : row + 1], out[row])


def sum_powers(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    """As `powers_reference.sum_powers`, on CPU."""
    _sum_powers(exponents, signs, out)


def encode_window(
    rows: Tensor, key: tuple[int, int] | None, lowest: Tensor, codes: Tensor, residual: Residual | None = None
) -> None:
    """As `powers_reference.encode_window`, for CPU rows: a pass for the peak, and one more."""
    rows, peaks = rows.contiguous(), torch.empty(_tiles(rows), dtype=torch.int32)
    for row in range(rows.shape[0]):
        source, old, decay, new = target_arrays(rows, residual, row)
        over_blocks(_peaks, _tiles(rows), TILE, source, old, decay, new, peaks.numpy())
        peak = peaks.amax(0, keepdim=True)
        first = lowest_fields(peak)
        lowest[row] = torch.where(peak < int(INFINITY), first, NOT_FINITE)
        scale = np.float32(window_scales(lowest[row]).item())
        arrays = (new if old.size else source, new, codes[row].numpy())
        noise = _noise(key, row * rows.shape[1])
        over_blocks(_encode_window, _tiles(rows), TILE, *noise, np.int32(first.item()), scale, *arrays)


def decode_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    """As `powers_reference.decode_window`, on CPU."""
    for row in range(out.shape[0]):
        _sum_window(lowest[row : row + 1], codes[row : row + 1], out[row])


def sum_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    """As `powers_reference.sum_window`, on CPU."""
    _sum_window(lowest, codes, out)


def _tiles(rows: Tensor) -> int:
    return -(-rows.shape[-1] // TILE)


def _noise(key: tuple[int, int] | None, counter: int) -> tuple[bool, int, np.uint32, np.uint32]:
    """Is there any, the row's first counter, and the key."""
    low, high = key or (0, 0)
    return key is not None, counter, np.uint32(low), np.uint32(high)


def _sum_powers(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    lines = (*rows_in_line(exponents), *rows_in_line(signs))
    over_blocks(_add_powers, _tiles(out), TILE, exponents.shape[0], *lines, bits_of(out))


def _sum_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    scales = window_scales(lowest[:, 0]).numpy()
    over_blocks(_add_windows, _tiles(out), TILE, scales, *rows_in_line(codes), bits_of(out))


@compiled
def _encode_powers(
    first: int,
    last: int,
    random: bool,
    counter: int,
    low: np.uint32,
    high: np.uint32,
    rows: Array,
    old: Array,
    decay: np.float32,
    new: Array,
    exponents: Array,
    signs: Array,
) -> None:
    zero, zeros, share, n = np.float32(0), splat(np.float32(0)), splat(decay), rows.size
    target = np.empty(TILE, np.float32)
    bits = target.view(np.int32)
    for start in range(first * TILE, min(last * TILE, n), TILE):
        size = min(TILE, n - start)
        for i in range(0, size, LANES):
            x = load(rows, start + i, n)
            if old.size:
                x = x + share * load(old, start + i, n)
            store(target, i, TILE, x)
            store_mask(signs, (start + i) >> 3, size - i, below(x, zero))
        if random:
            _powers_at_random(bits[:size], np.uint32(counter + start), low, high, exponents[start : start + size])
        else:
            _nearest_powers(bits[:size], exponents[start : start + size])
        if new.size:
            for i in range(0, size, LANES):
                x, power = load(target, i, TILE), load_powers(exponents, start + i, n)
                store(new, start + i, n, x - where(below(x, zero), zeros - power, power))


@compiled
def _add_powers(
    first: int,
    last: int,
    num_rows: int,
    exponents: Array,
    exponents_apart: int,
    signs: Array,
    signs_apart: int,
    out: Array,
) -> None:
    zeros, n = splat(np.float32(0)), out.size
    for i in range(first * TILE, min(last * TILE, n), LANES):
        total = zeros
        for row in range(num_rows):
            begin = row * exponents_apart
            power = load_powers(exponents, begin + i, begin + n)
            negative = load_mask(signs, row * signs_apart + (i >> 3), n - i)
            total = total + where(negative, zeros - power, power)
        store(out, i, n, total)


@compiled
def _peaks(first: int, last: int, rows: Array, old: Array, decay: np.float32, new: Array, peaks: Array) -> None:
    share, n = splat(decay), rows.size
    for tile in range(first, last):
        peak = splat(np.float32(0))
        for i in range(tile * TILE, min((tile + 1) * TILE, n), LANES):
            x = load(rows, i, n)
            if old.size:
                x = x + share * load(old, i, n)
                store(new, i, n, x)
            peak = larger(peak, x)
        peaks[tile] = largest_bits(peak)


@compiled
def _encode_window(
    first: int,
    last: int,
    random: bool,
    counter: int,
    low: np.uint32,
    high: np.uint32,
    first_field: np.int32,
    scale: np.float32,
    rows: Array,
    new: Array,
    codes: Array,
) -> None:
    minus_scale, n = splat(-scale), rows.size
    target = np.empty(TILE, np.float32)
    bits = target.view(np.int32)
    for start in range(first * TILE, min(last * TILE, n), TILE):
        size = min(TILE, n - start)
        for i in range(0, size, LANES):
            store(target, i, TILE, load(rows, start + i, n))
        if random:
            number = np.uint32(counter + start)
            _codes_at_random(bits[:size], first_field, number, low, high, codes[start : start + size])
        else:
            _nearest_codes(bits[:size], first_field, codes[start : start + size])
        if new.size:
            for i in range(0, size, LANES):
                power = load_signed_powers(codes, start + i, n)
                store(new, start + i, n, fma(minus_scale, power, load(target, i, TILE)))


@compiled
def _add_windows(first: int, last: int, scales: Array, codes: Array, apart: int, out: Array) -> None:
    n = out.size
    for i in range(first * TILE, min(last * TILE, n), LANES):
        total = splat(np.float32(0))
        for row in range(scales.size):
            begin = row * apart
            power = load_signed_powers(codes, begin + i, begin + n)
            total = fma(splat(scales[row]), power, total)  # the product is exact
        store(out, i, n, total)


# The roundings, over contiguous slices so that LLVM sees plain vectors.


@compiled
def _powers_at_random(bits: Array, counter: np.uint32, low: np.uint32, high: np.uint32, exponents: Array) -> None:
    for i in range(bits.size):
        noise = np.int32(hash_counter(np.uint32(counter + np.uint32(i)), low, high) & MASK)
        exponents[i] = _field(np.int32(bits[i] & MAGNITUDE), noise)


@compiled
def _nearest_powers(bits: Array, exponents: Array) -> None:
    for i in range(bits.size):
        exponents[i] = _field(np.int32(bits[i] & MAGNITUDE), HALF)


@compiled
def _field(magnitude: np.int32, noise: np.int32) -> np.uint8:
    field = min(np.int32(np.int32(min(magnitude, INFINITY) + noise) >> PLACES), TOP)
    return np.uint8(field if magnitude < INFINITY else BEYOND)


@compiled
def _codes_at_random(
    bits: Array, first_field: np.int32, counter: np.uint32, low: np.uint32, high: np.uint32, codes: Array
) -> None:
    for i in range(bits.size):
        noise = np.int32(hash_counter(np.uint32(counter + np.uint32(i)), low, high) & MASK)
        codes[i] = _code(bits[i], first_field, noise)


@compiled
def _nearest_codes(bits: Array, first_field: np.int32, codes: Array) -> None:
    for i in range(bits.size):
        codes[i] = _code(bits[i], first_field, HALF)


@compiled
def _code(bits: np.int32, first_field: np.int32, noise: np.int32) -> np.uint8:
    magnitude = np.int32(bits & MAGNITUDE)
    to_first = np.int32((TOP - first_field) << PLACES).view(np.float32)
    share = np.int32(magnitude).view(np.float32) * to_first
    share = share if share < np.float32(1) else np.float32(1)
    below_first = np.int32(np.int32(np.int32(share * WHOLE) + noise) >> PLACES)
    above_first = np.int32(np.int32(min(magnitude, INFINITY) + noise) >> PLACES)
    above_first = np.int32(min(above_first, TOP) - first_field + np.int32(1))
    place = below_first if np.int32(magnitude >> PLACES) < first_field else above_first
    negative = np.int32(bits < 0) & np.int32(magnitude > 0) & np.int32(magnitude <= INFINITY)
    return np.uint8((place if magnitude < INFINITY else BEYOND) | (negative << np.int32(SIGN)))
