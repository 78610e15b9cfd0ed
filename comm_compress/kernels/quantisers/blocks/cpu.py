"""Block codes as numba kernels: the reference's bytes, in one pass over memory.

A span of blocks is taken through all its steps while it lies in the first-level cache: first the scales of its blocks,
then, 32 elements at a time in registers, codes, their packing and what they lose. The target of error feedback is
calculated in both steps, which costs less than keeping it; what is rotated is kept. A kernel is compiled for the kind
of code (`_encoder`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.elements.random.cpu import load_fractions, noise_piece
from comm_compress.kernels.elements.random.reference import SHARED
from comm_compress.kernels.elements.residual.cpu import NOTHING, few_as_float32, load_target, prefetch_target
from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.packing.trits import cpu as trits_cpu
from comm_compress.kernels.quantisers.blocks.block_code import BlockCode
from comm_compress.kernels.quantisers.blocks.float8 import from_float8, to_float8
from comm_compress.kernels.quantisers.blocks.hadamard import rotated
from comm_compress.kernels.quantisers.blocks.reference import HUGE, SHORT_HUGE, TILE
from comm_compress.kernels.tools.compiled import ROUND, TINY, Array, compiled, inlined
from comm_compress.kernels.tools.threads import over_blocks
from comm_compress.kernels.tools.vectors.nontemporal import FAR, NEAR, fence, stream
from comm_compress.kernels.tools.vectors.packing import load_codes, store_codes
from comm_compress.kernels.tools.vectors.sign_sums import sum_expanded
from comm_compress.kernels.tools.vectors.vectors import (
    LANES,
    at_least,
    bits_of,
    clamped,
    doubles,
    floor,
    larger,
    largest_bits,
    load,
    magnitudes,
    rows_in_line,
    smaller,
    splat,
    store,
    store_mask,
    sum_of_pairs,
    where,
    whole_bytes,
    whole_floats,
)

PIECE = TILE  # elements whose random bits are drawn together
MANTISSA = {"e4m3": 3, "e5m2": 2}  # bits
ALL, NONE = np.uint32(0xFFFFFFFF), np.uint32(0)
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
NOWHERE = torch.empty(0)
Kernel = Callable[..., None]


def encode(
    rows: Tensor,
    code: BlockCode,
    key: tuple[int, int] | None,
    codes: Tensor,
    scales: Tensor,
    residual: Residual | None = None,
) -> None:
    if code.bits is None:  # three states do not fill bits: codes first, then five to a byte
        unpacked = torch.empty(rows.shape, dtype=torch.int8)
        encode(rows, code._replace(bits=8), key, unpacked.view(torch.uint8), scales, residual)
        trits_cpu.pack(unpacked, codes)
        return
    num_rows, n = rows.shape
    rows, residual = few_as_float32(rows, residual)
    old, decay, new = NOTHING, 0.0, NOTHING
    if residual is not None:
        decay, new = residual.decay, bits_of(residual.new.view(-1))
        old = NOTHING if residual.old is None else bits_of(residual.old.reshape(-1))
    low, high = key or (0, 0)
    span = max(1, PIECE // code.block(n)) * code.block(n)  # one block, or as many small ones as fit into a piece
    over_blocks(
        _encoder(code.rounding, code.bits, code.size, code.clip_sigmas > 0, code.rotate),
        num_rows * math.ceil(n / span),
        span,
        *(n, code.block(n), span, np.float32(code.levels), float(code.clip_sigmas), code.short_scales),
        *(np.uint32(low), np.uint32(high)),
        *(bits_of(rows.reshape(-1)), old, np.float32(decay), new, *rows_in_line(codes), *rows_in_line(scales)),
    )


def encode_difference(
    a: Tensor, b: Tensor, code: BlockCode, key: tuple[int, int] | None, codes: Tensor, scales: Tensor
) -> bool:
    """The difference is a target of error feedback: a + (-1) b, rounded once, and nobody wants what codes lose."""
    encode(a.unsqueeze(0), code, key, codes, scales, Residual(b.unsqueeze(0), -1.0, NOWHERE))
    return bool(np.isfinite(scales.numpy()).all())


def decode(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    for row in range(codes.shape[0]):
        decode_sum(codes[row : row + 1], scales[row : row + 1], code, out[row])


def decode_sum(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    """Here ``out`` may be of any float dtype, because `decode` is the sum of one row."""
    n = out.numel()
    if code.bits == 1:
        sum_expanded(codes, scales, -scales, code.block(n), out)
        return
    if code.bits is None:
        codes, code = trits_cpu.unpack(codes, n).view(torch.uint8), code._replace(bits=8)
    _sum(False, codes, scales, code, out)


def decode_add(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    if code.bits is None or code.bits == 1:
        decoded = torch.empty_like(out, dtype=torch.float32)
        decode_sum(codes, scales, code, decoded)
        out += decoded
    else:
        _sum(True, codes, scales, code, out)


def _sum(add: bool, codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    """Write the sum of the decoded rows to ``out``, or add it."""
    n = out.numel()
    assert code.bits is not None
    over_blocks(
        _summer(MANTISSA.get(code.rounding, 0), code.bits, code.rotate, add),
        math.ceil(n / PIECE),
        PIECE,
        *(codes.shape[0], code.block(n), *rows_in_line(codes), *rows_in_line(scales), bits_of(out)),
    )


# Kernels for one kind of code: what depends on constants alone is decided before anything is compiled.


@functools.cache
def _encoder(rounding: str, bits: int, size: str, clipped: bool, rotate: bool) -> Kernel:
    norm_of, code = _norm_of(size, clipped, rotate), _coder(rounding, bits)

    @compiled
    def encode(
        first: int,
        last: int,
        n: int,
        block_size: int,
        span: int,
        levels: np.float32,
        clip_sigmas: float,
        short_scales: bool,
        low: np.uint32,
        high: np.uint32,
        rows: Array,
        old: Array,
        decay: np.float32,
        new: Array,
        codes: Array,
        code_stride: int,
        scales: Array,
        scale_stride: int,
    ) -> None:
        spans, counters = (n + span - 1) // span, (n + TILE - 1) // TILE * SHARED
        ahead = span if span <= NEAR else 0
        noise, share = np.empty(PIECE, np.uint32), splat(decay)
        keeps = rotate and span <= NEAR
        kept = np.empty(span if keeps else 0, np.float32)
        highest, lowest = splat(levels), splat(-levels)
        for item in range(first, last):
            row, from_ = item // spans, item % spans * span
            base, to, code_base, scale_base = row * n, min(from_ + span, n), row * code_stride, row * scale_stride
            for start in range(from_, to, block_size):
                end = min(start + block_size, to)
                norm = norm_of(rows, old, share, base, start, end, clip_sigmas, kept, from_, keeps)
                scales[scale_base + start // block_size] = _scale(norm, levels, short_scales)
            for piece in range(from_, to, PIECE):
                start, stop = piece, min(piece + PIECE, to)
                if rounding == "stochastic":
                    noise_piece(np.uint32(row * counters), piece, low, high, noise[: stop - piece])
                while start < stop:
                    block = start // block_size
                    end, scale = min((block + 1) * block_size, stop), scales[scale_base + block]
                    usable, inverse = (ALL, splat(ONE / scale)) if scale > 0 else (NONE, splat(ZERO))
                    factor, code_end = splat(scale), code_base + (end * bits + 7) // 8
                    for i in range(start, end, LANES):
                        target = load_target(rows, old, share, base + i, base + end)
                        prefetch_target(rows, old, base + i + ahead)
                        x = target
                        if rotate and keeps:
                            x = load(kept, i - from_, end - from_)
                        elif rotate and i + LANES <= end:
                            x = rotated(target)
                        place = code_base + i * bits // 8
                        decoded = code(
                            x,
                            usable,
                            inverse,
                            factor,
                            lowest,
                            highest,
                            noise,
                            i - piece,
                            end - piece,
                            codes,
                            place,
                            code_end,
                        )
                        if new.size:
                            if rotate and i + LANES <= end:
                                decoded = rotated(decoded)
                            stream(new, base + i, base + end, target - decoded)
                    start = end
        fence()

    return encode


@functools.cache
def _norm_of(size: str, clipped: bool, rotate: bool) -> Callable[..., float]:
    """What a block's scale is calculated from, of the row at ``base``; its rotated target is kept where asked for."""

    @inlined
    def norm_of(
        rows: Array,
        old: Array,
        share: Any,
        base: int,
        start: int,
        end: int,
        clip_sigmas: float,
        kept: Array,
        from_: int,
        keeps: bool,
    ) -> float:
        zeros = splat(ZERO)
        largest, sum_, squares = zeros, 0.0, 0.0
        for tile in range(start, end, TILE):
            lanes, square_lanes = doubles(zeros), doubles(zeros)
            for i in range(tile, min(tile + TILE, end), LANES):
                x = load_target(rows, old, share, base + i, base + end)
                if rotate and i + LANES <= end:
                    x = rotated(x)
                if rotate and keeps:
                    store(kept, i - from_, end - from_, x)
                if size == "max":
                    largest = larger(largest, x)
                if size == "mean":
                    lanes = lanes + doubles(magnitudes(x))
                if size == "l2" or clipped:
                    wide = doubles(x)
                    square_lanes = square_lanes + wide * wide
            if size == "mean":
                sum_ += sum_of_pairs(lanes)
            if size == "l2" or clipped:
                squares += sum_of_pairs(square_lanes)
        if size == "max":
            norm = float(np.int32(largest_bits(largest)).view(np.float32))
        elif size == "l2":
            norm = np.sqrt(squares)
        else:
            norm = sum_ / (end - start)
        if clipped:
            norm = min(norm, clip_sigmas * np.sqrt(squares / (end - start)))
        return norm

    return norm_of


@functools.cache
def _coder(rounding: str, bits: int) -> Callable[..., Any]:
    """Writes the codes of 32 elements x and returns what they decode to; ``noise`` is for them from ``at`` on."""
    mantissa = MANTISSA.get(rounding, 0)

    @inlined
    def code(
        x: Any,
        usable: np.uint32,
        inverse: Any,
        factor: Any,
        lowest: Any,
        highest: Any,
        noise: Array,
        at: int,
        until: int,
        codes: Array,
        place: int,
        code_end: int,
    ) -> Any:
        zeros, ones = splat(ZERO), splat(ONE)
        if bits == 1:
            if rounding == "sign":
                mask = at_least(x, ZERO)
            else:
                t = x * inverse * splat(HALF) + splat(HALF)
                whole = floor(t)
                up = smaller(load_fractions(noise, at, until), t - whole)
                mask = at_least(whole + where(up, ones, zeros), ONE)
            mask = np.uint32(mask & usable)
            store_mask(codes, place, until - at, mask)
            return where(mask, factor, zeros - factor)
        if mantissa:
            tiny = to_float8(where(usable, x, zeros) * inverse, mantissa)
            store_codes(codes, place, code_end, bits, tiny)
            return from_float8(tiny, mantissa) * factor
        t = where(usable, x, zeros) * inverse
        if rounding == "nearest":
            t = (t + splat(ROUND)) - splat(ROUND)
        else:
            whole = floor(t)
            up = smaller(load_fractions(noise, at, until), t - whole)
            t = whole + where(up, ones, zeros)
        t = clamped(t, lowest, highest)
        store_codes(codes, place, code_end, bits, whole_bytes(t))
        return t * factor

    return code


@functools.cache
def _summer(mantissa: int, bits: int, rotate: bool, add: bool) -> Kernel:
    @compiled
    def sum_(
        first: int,
        last: int,
        num_rows: int,
        block_size: int,
        codes: Array,
        code_stride: int,
        scales: Array,
        scale_stride: int,
        out: Array,
    ) -> None:
        far = out.size >= FAR
        for piece in range(first, last):
            start, stop = piece * PIECE, min((piece + 1) * PIECE, out.size)
            while start < stop:
                block = start // block_size
                end = min((block + 1) * block_size, stop)
                for i in range(start, end, LANES):
                    total = splat(ZERO)
                    for row in range(num_rows):
                        place, code_end = i * bits // 8, (end * bits + 7) // 8
                        code = load_codes(codes, row * code_stride + place, row * code_stride + code_end, bits)
                        scale = splat(scales[row * scale_stride + block])
                        if mantissa:
                            total = total + from_float8(code, mantissa) * scale
                        else:
                            total = total + whole_floats(code) * scale
                    if rotate and i + LANES <= end:
                        total = rotated(total)
                    if add:
                        total = load(out, i, end) + total
                    if far and not add:
                        stream(out, i, end, total)
                    else:
                        store(out, i, end, total)
                start = end
        if far:
            fence()

    return sum_


@compiled
def _scale(size: float, levels: np.float32, short: bool) -> np.float32:
    """0 for a block that is too small, NaN for one that is not finite."""
    if not size < np.inf:
        return np.float32(np.nan)
    scale = np.float32(min(size / np.float64(levels), SHORT_HUGE if short else HUGE))
    if short:
        bits = np.int64(scale.view(np.int32))
        scale = np.int32((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).view(np.float32)
    return scale if scale >= TINY else ZERO
