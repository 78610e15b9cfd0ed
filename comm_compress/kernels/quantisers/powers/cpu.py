"""Signed powers of two as numba kernels."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from comm_compress.kernels.elements.random.cpu import noise_piece
from comm_compress.kernels.elements.random.reference import SHARED, TILE
from comm_compress.kernels.elements.residual.cpu import few_as_float32, load_target, prefetch_target, target_arrays
from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.quantisers.powers.power_codes import (
    TO_NEAREST,
    exponent_fields,
    powers,
    signed_powers,
    window_codes,
)
from comm_compress.kernels.quantisers.powers.reference import LARGEST, MANTISSA, NOT_FINITE, POWER_BLOCK, WINDOW
from comm_compress.kernels.tools.compiled import INFINITY, Array, compiled
from comm_compress.kernels.tools.threads import over_blocks
from comm_compress.kernels.tools.vectors.nontemporal import fence, stream
from comm_compress.kernels.tools.vectors.packing import load_codes, store_codes
from comm_compress.kernels.tools.vectors.vectors import (
    LANES,
    below,
    bits_of,
    fma,
    larger,
    largest_bits,
    load_mask,
    rows_in_line,
    splat,
    store,
    store_mask,
    where,
)

PLACES, TOP = np.int32(MANTISSA), np.int32(LARGEST)


def encode(
    rows: Tensor, key: tuple[int, int] | None, exponents: Tensor, signs: Tensor, residual: Residual | None = None
) -> None:
    rows, residual = few_as_float32(rows.contiguous(), residual)
    for row in range(rows.shape[0]):
        arrays = (*target_arrays(rows, residual, row), exponents[row].numpy(), signs[row].numpy())
        over_blocks(_encode_powers, _tiles(rows), TILE, *_noise(key, row * _tiles(rows)), *arrays)


def decode(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    for row in range(out.shape[0]):
        _sum_powers(exponents[row : row + 1], signs[row : row + 1], out[row])


def decode_sum(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    _sum_powers(exponents, signs, out)


def encode_window(
    rows: Tensor, key: tuple[int, int] | None, lowest: Tensor, codes: Tensor, residual: Residual | None = None
) -> None:
    rows, residual = few_as_float32(rows.contiguous(), residual)
    for row in range(rows.shape[0]):
        arrays = (*target_arrays(rows, residual, row), lowest[row].numpy(), codes[row].numpy())
        over_blocks(_encode_window, lowest.shape[1], POWER_BLOCK, *_noise(key, row * _tiles(rows)), *arrays)


def decode_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    for row in range(out.shape[0]):
        _sum_window(lowest[row : row + 1], codes[row : row + 1], out[row])


def decode_window_sum(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    _sum_window(lowest, codes, out)


def _tiles(rows: Tensor) -> int:
    return -(-rows.shape[-1] // TILE)


def _noise(key: tuple[int, int] | None, tiles_before: int) -> tuple[bool, np.uint32, np.uint32, np.uint32]:
    """Is there any, the row's first counter, and the key."""
    low, high = key or (0, 0)
    return key is not None, np.uint32(tiles_before * SHARED), np.uint32(low), np.uint32(high)


def _sum_powers(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    lines = (*rows_in_line(exponents), *rows_in_line(signs))
    over_blocks(_add_powers, _tiles(out), TILE, exponents.shape[0], *lines, bits_of(out))


def _sum_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    lines = (*rows_in_line(lowest), *rows_in_line(codes))
    over_blocks(_add_windows, lowest.shape[1], POWER_BLOCK, codes.shape[0], *lines, bits_of(out))


@compiled
def _encode_powers(
    first: int,
    last: int,
    random: bool,
    counter: np.uint32,
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
    noise = np.full(TILE, TO_NEAREST, np.uint32)
    for start in range(first * TILE, min(last * TILE, n), TILE):
        end = min(start + TILE, n)
        if random:
            noise_piece(counter, start, low, high, noise[: end - start])
        for i in range(start, end, LANES):
            x = load_target(rows, old, share, i, n)
            prefetch_target(rows, old, i + TILE)
            negative, field = below(x, zero), exponent_fields(x, noise, i - start)
            store_mask(signs, i >> 3, n - i, negative)
            store_codes(exponents, i, n, 8, field)
            if new.size:
                power = powers(field)
                stream(new, i, n, x - where(negative, zeros - power, power))
    fence()


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
            power = powers(load_codes(exponents, begin + i, begin + n, 8))
            negative = load_mask(signs, row * signs_apart + (i >> 3), n - i)
            total = total + where(negative, zeros - power, power)
        store(out, i, n, total)


@compiled
def _encode_window(
    first: int,
    last: int,
    random: bool,
    counter: np.uint32,
    low: np.uint32,
    high: np.uint32,
    rows: Array,
    old: Array,
    decay: np.float32,
    new: Array,
    lowest: Array,
    codes: Array,
) -> None:
    share, n, noise = splat(decay), rows.size, np.full(TILE, TO_NEAREST, np.uint32)
    for block in range(first, last):
        start = block * POWER_BLOCK
        end, peak = min(start + POWER_BLOCK, n), splat(np.float32(0))
        for i in range(start, end, LANES):
            x = load_target(rows, old, share, i, n)
            peak = larger(peak, x)
        peak_bits = largest_bits(peak)
        field = _lowest_field(peak_bits)
        lowest[block] = field if peak_bits < INFINITY else NOT_FINITE
        minus_scale = splat(-_window_scale(lowest[block]))
        for tile in range(start, end, TILE):
            if random:
                noise_piece(counter, tile, low, high, noise[: min(TILE, end - tile)])
            for i in range(tile, min(tile + TILE, end), LANES):
                x = load_target(rows, old, share, i, n)
                prefetch_target(rows, old, i + POWER_BLOCK)
                code = window_codes(x, noise, i - tile, field)
                store_codes(codes, i, n, 8, code)
                if new.size:
                    stream(new, i, n, fma(minus_scale, signed_powers(code), x))
    fence()


@compiled
def _add_windows(
    first: int, last: int, num_rows: int, lowest: Array, lowest_apart: int, codes: Array, apart: int, out: Array
) -> None:
    n, scales = out.size, np.empty(num_rows, np.float32)
    for block in range(first, last):
        for row in range(num_rows):
            scales[row] = _window_scale(lowest[row * lowest_apart + block])
        for i in range(block * POWER_BLOCK, min((block + 1) * POWER_BLOCK, n), LANES):
            total = splat(np.float32(0))
            for row in range(num_rows):
                begin = row * apart
                power = signed_powers(load_codes(codes, begin + i, begin + n, 8))
                total = fma(splat(scales[row]), power, total)  # the product is exact
            store(out, i, n, total)


@compiled
def _lowest_field(peak: np.int32) -> np.int32:
    """As `reference.lowest_fields`."""
    top = min(np.int32(np.int32(peak >> PLACES) + np.int32(1)), TOP)
    return np.int32(max(np.int32(top - np.int32(WINDOW - 1)), np.int32(1)))


@compiled
def _window_scale(lowest: np.uint8) -> np.float32:
    """As `reference.window_scales`."""
    if lowest == NOT_FINITE:
        return np.float32(np.nan)
    return np.int32((np.int32(lowest) + np.int32(LARGEST // 2 - 1)) << PLACES).view(np.float32)
