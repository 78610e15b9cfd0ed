"""Signed powers of two as Triton kernels."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.elements.random.triton import noise_at
from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.quantisers.powers.reference import POWER_BLOCK
from comm_compress.kernels.tools.triton.launching import (
    INFINITE,
    MAGNITUDE,
    TILE,
    as_int32,
    launch,
    row_stride,
    target_at,
)
from comm_compress.kernels.tools.triton.tiles import decode_tiles, scale_at, store_packed, tile_here, unpacked

MANTISSA = tl.constexpr(23)
ONE = tl.constexpr(1 << 23)  # of a mantissa
LARGEST = tl.constexpr(254)  # exponent field of the largest finite power of two, 2^127
WINDOW = tl.constexpr(127)  # powers that 7 bits tell apart, beside zero


def encode(
    rows: Tensor, key: tuple[int, int] | None, exponents: Tensor, signs: Tensor, residual: Residual | None = None
) -> None:
    _encode(_encode_powers, TILE, rows, key, exponents, signs, residual)


def decode(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    decode_tiles(_decode_powers, signs, [exponents], out.shape[-1], out)


def decode_sum(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    decode(exponents, signs, out)  # one row: the sum


def encode_window(
    rows: Tensor, key: tuple[int, int] | None, lowest: Tensor, codes: Tensor, residual: Residual | None = None
) -> None:
    _encode(_encode_window, POWER_BLOCK, rows, key, lowest, codes, residual)


def decode_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    decode_tiles(_decode_window, codes, [lowest], POWER_BLOCK, out)


def decode_window_sum(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    decode_window(lowest, codes, out)  # one row: the sum


def _encode(
    kernel: triton.JITFunction,
    tile: int,
    rows: Tensor,
    key: tuple[int, int] | None,
    first: Tensor,
    second: Tensor,
    residual: Residual | None,
) -> None:
    """Both formats: two fields of the message; ``tile`` elements a program."""
    num_rows, n = rows.shape
    old, decay, new = residual or (None, 1.0, None)
    low, high = (as_int32(word) for word in key or (0, 0))
    tensors = rows, old, new, first, second
    arguments = *tensors, second.shape[1], n, decay, *map(row_stride, tensors), low, high
    launch(kernel, (triton.cdiv(n, tile), num_rows), *arguments, RANDOM=key is not None, TILE=tile)


@triton.jit
def _places(target, first, row, i, n, low, high, RANDOM: tl.constexpr):
    """int32: 0 for zero, p for the power with the field p + first - 1, 255 if not finite."""
    noise = tl.full([], 1 << 22, tl.int32)
    if RANDOM:
        noise = (noise_at(row, i, n, low, high) >> (32 - MANTISSA)).to(tl.int32)
    bits = target.to(tl.int32, bitcast=True) & MAGNITUDE
    to_first = ((tl.full([], LARGEST, tl.int32) - first) << MANTISSA).to(
        tl.float32, bitcast=True
    )  # 1 / 2^(first - 127)
    finite = tl.where(bits < INFINITE, bits, 0).to(tl.float32, bitcast=True)
    share = tl.minimum(finite * to_first, 1.0) * (ONE * 1.0)
    below = (share.to(tl.int32) + noise) >> MANTISSA
    above = tl.minimum((tl.minimum(bits, INFINITE) + noise) >> MANTISSA, LARGEST) - (first - 1)
    places = tl.where(bits >> MANTISSA < first, below, above)
    return tl.where(bits >= INFINITE, 255, places)


@triton.jit
def _power(exponent, negative):
    """float32 of an exponent field (int32) and a sign; no negative zeros."""
    magnitude = (exponent << MANTISSA).to(tl.float32, bitcast=True)
    return tl.where(negative, -magnitude, magnitude) + 0.0


@triton.jit
def _in_window(code, lowest):
    """float32 of codes and of their blocks' ``lowest``, both int32."""
    power = (((code & WINDOW) << MANTISSA) | ((code >> 7) << 31)).to(tl.float32, bitcast=True)
    scale = ((lowest + (LARGEST // 2 - 1)) << MANTISSA).to(tl.float32, bitcast=True)
    return power * tl.where(lowest == 0, float("nan"), scale) + 0.0  # exact; no negative zeros


@triton.jit(do_not_specialize=["low", "high"])
def _encode_powers(
    rows, old, new, exponents, signs, num_bytes, n, decay,
    row_stride, old_stride, new_stride, exponent_stride, sign_stride, low, high,
    RANDOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    line, i = tile_here(1, TILE)
    if old is not None:
        old += row * old_stride
    target = target_at(rows + row * row_stride, old, decay, i, i < n)
    exponent = _places(target, tl.full([], 1, tl.int32), row, i, n, low, high, RANDOM)
    negative = target < 0
    tl.store(exponents + row * exponent_stride + i, exponent.to(tl.uint8), mask=i < n)
    store_packed(signs + row * sign_stride, negative.to(tl.int32), line, num_bytes, 1, TILE, 1, TILE)
    if new is not None:
        tl.store(new + row * new_stride + i, target - _power(exponent, negative), mask=i < n)


@triton.jit
def _decode_powers(
    signs, exponents, out, n, num_bytes, num_rows, sign_stride, exponent_stride, out_stride,
    BLOCK: tl.constexpr, SUM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of this row, decoded, or (SUM) of the sum of all ``num_rows`` in row order."""
    row = tl.program_id(1).to(tl.int64)
    line, i = tile_here(ROWS, COLUMNS)
    if SUM:
        x = tl.zeros([ROWS, COLUMNS], tl.float32)
        for _ in range(num_rows):
            exponent = tl.load(exponents + i, mask=i < n, other=0).to(tl.int32)
            x += _power(exponent, unpacked(signs, line, num_bytes, 1, ROWS, COLUMNS) > 0)
            signs += sign_stride
            exponents += exponent_stride
    else:
        exponent = tl.load(exponents + row * exponent_stride + i, mask=i < n, other=0).to(tl.int32)
        x = _power(exponent, unpacked(signs + row * sign_stride, line, num_bytes, 1, ROWS, COLUMNS) > 0)
    tl.store(out + row * out_stride + i, x.to(out.dtype.element_ty), mask=i < n)


@triton.jit(do_not_specialize=["low", "high"])
def _encode_window(
    rows, old, new, lowest, codes, num_bytes, n, decay,
    row_stride, old_stride, new_stride, lowest_stride, code_stride, low, high,
    RANDOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    if old is not None:
        old += row * old_stride
    target = target_at(rows + row * row_stride, old, decay, i, i < n)
    peak = tl.max(target.to(tl.int32, bitcast=True) & MAGNITUDE, axis=0)
    first = tl.maximum(tl.minimum((peak >> MANTISSA) + 1, LARGEST) - (WINDOW - 1), 1)
    place = _places(target, first, row, i, n, low, high, RANDOM)
    code = place | ((target < 0).to(tl.int32) << 7)
    sent = tl.where(peak < INFINITE, first, 0)
    tl.store(lowest + row * lowest_stride + tl.program_id(0), sent.to(tl.uint8))
    tl.store(codes + row * code_stride + i, code.to(tl.uint8), mask=i < n)
    if new is not None:
        tl.store(new + row * new_stride + i, target - _in_window(code & 255, sent), mask=i < n)


@triton.jit
def _decode_window(
    codes, lowest, out, n, num_bytes, num_rows, code_stride, lowest_stride, out_stride,
    BLOCK: tl.constexpr, SUM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of this row, decoded, or (SUM) of the sum of all ``num_rows`` in row order."""
    row = tl.program_id(1).to(tl.int64)
    _, i = tile_here(ROWS, COLUMNS)
    if SUM:
        x = tl.zeros([ROWS, COLUMNS], tl.float32)
        for _ in range(num_rows):
            x += _windowed_at(codes, lowest, i, n, BLOCK, ROWS, COLUMNS)
            codes += code_stride
            lowest += lowest_stride
    else:
        x = _windowed_at(codes + row * code_stride, lowest + row * lowest_stride, i, n, BLOCK, ROWS, COLUMNS)
    tl.store(out + row * out_stride + i, x.to(out.dtype.element_ty), mask=i < n)


@triton.jit
def _windowed_at(codes, lowest, i, n, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    of_block = scale_at(lowest, i, i < n, 8, BLOCK, ROWS, COLUMNS)
    return _in_window(tl.load(codes + i, mask=i < n, other=0).to(tl.int32), of_block.to(tl.int32))
