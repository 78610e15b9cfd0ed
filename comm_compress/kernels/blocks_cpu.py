"""Block codes as numba kernels: the reference's bytes, in one pass over memory.

A span of blocks is taken through all its steps while it lies in the first-level cache: the target of error feedback,
scales, codes (a piece of `PIECE` elements at a time), their packing, and what they lose.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels import formats_cpu
from comm_compress.kernels.block_code import BlockCode
from comm_compress.kernels.blocks_reference import HUGE, LANES, TILE
from comm_compress.kernels.hadamard_cpu import rotate
from comm_compress.kernels.numba_tools import INFINITY, MAGNITUDE, TINY, Array, compiled, over_blocks, peak_bits
from comm_compress.kernels.packing_cpu import pack_piece, unpack_piece
from comm_compress.kernels.random_cpu import UNIT, noise_piece
from comm_compress.kernels.residual import Residual
from comm_compress.kernels.stream_cpu import fence, stream_all
from comm_compress.kernels.vectors import bits_of, rows_in_line

PIECE = 1024  # elements whose codes are held unpacked
CACHED = 1 << 15  # elements of a span whose target is held apart: half of a small second-level cache
ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds half to even, as torch.round does
ROUNDINGS = {"nearest": 0, "stochastic": 1, "sign": 2, "e4m3": 3, "e5m2": 4}
NEAREST, STOCHASTIC, SIGN, E4M3, E5M2 = ROUNDINGS.values()
SIZES = {"max": 0, "l2": 1, "mean": 2}
MAX, L2, MEAN = SIZES.values()
NO_FEEDBACK, TARGET_IN_NEW, NOTHING_WAITS, ADD_OLD = range(4)


def encode_blocks(
    rows: Tensor,
    code: BlockCode,
    key: tuple[int, int] | None,
    codes: Tensor,
    scales: Tensor,
    residual: Residual | None = None,
) -> None:
    """As `blocks_reference.encode_blocks`, for CPU rows."""
    if code.bits is None:  # three states do not fill bits: codes first, then five to a byte
        unpacked = torch.empty(rows.shape, dtype=torch.int8)
        encode_blocks(rows, code._replace(bits=8), key, unpacked.view(torch.uint8), scales, residual)
        formats_cpu.pack_trits(unpacked, codes)
        return
    num_rows, n = rows.shape
    mode, decay, old, new = NO_FEEDBACK, 1.0, rows, rows
    if residual is not None:
        new, decay = residual.new, residual.decay
        if rows.dtype != torch.float32 or (residual.old is not None and residual.old.dtype != torch.float32):
            mode, rows = TARGET_IN_NEW, residual.target(rows)
        else:
            mode, old = (NOTHING_WAITS, rows) if residual.old is None else (ADD_OLD, residual.old)
    rows = rows.float().contiguous()
    low, high = key or (0, 0)
    span = _span(code, n)
    over_blocks(
        _encode,
        num_rows * math.ceil(n / span),
        span,
        *(n, code.block(n), span, ROUNDINGS[code.rounding], SIZES[code.size], code.bits, code.rotate),
        *(np.float32(code.levels), code.clip_sigmas, np.uint32(low), np.uint32(high)),
        *(mode, np.float32(decay), bits_of(rows.view(-1)), bits_of((old if mode == ADD_OLD else rows).view(-1))),
        *(bits_of((new if mode != NO_FEEDBACK else rows).view(-1)), *rows_in_line(codes), *rows_in_line(scales)),
    )


def decode_blocks(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    """As `blocks_reference.decode_blocks`, for CPU codes."""
    target = out if out.dtype == torch.float32 and out.is_contiguous() else torch.empty(out.shape)
    for row in range(codes.shape[0]):
        sum_blocks(codes[row : row + 1], scales[row : row + 1], code, target[row])
    if target is not out:
        out.copy_(target)


def sum_blocks(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    """As `blocks_reference.sum_blocks`, for CPU codes."""
    n = out.numel()
    if code.bits is None:
        unpacked = formats_cpu.unpack_trits(codes, n).view(torch.uint8)
        sum_blocks(unpacked, scales, code._replace(bits=8), out)
        return
    span = _span(code, n)
    over_blocks(
        _sum,
        math.ceil(n / span),
        span,
        *(codes.shape[0], code.block(n), span, ROUNDINGS[code.rounding], code.bits, code.rotate),
        *(*rows_in_line(codes), *rows_in_line(scales), out.numpy()),
    )


def _span(code: BlockCode, n: int) -> int:
    """Elements taken through all steps together: one block, or as many small ones as fit into a piece."""
    block = code.block(n)
    return max(1, PIECE // block) * block


@compiled
def _encode(
    first: int,
    last: int,
    n: int,
    block_size: int,
    span: int,
    rounding: int,
    size: int,
    bits: int,
    rotate_first: bool,
    levels: np.float32,
    clip_sigmas: float,
    low: np.uint32,
    high: np.uint32,
    mode: int,
    decay: np.float32,
    rows: Array,
    old: Array,
    new: Array,
    codes: Array,
    code_stride: int,
    scales: Array,
    scale_stride: int,
) -> None:
    spans, tiles = (n + span - 1) // span, (n + TILE - 1) // TILE
    piece, noise, lanes = np.zeros(PIECE, np.int8), np.empty(PIECE, np.uint32), np.empty(LANES, np.float64)
    turned = np.empty(span if rotate_first else 0, np.float32)
    streamed = mode != NO_FEEDBACK and span <= CACHED
    target = np.empty(span if streamed else 0, np.float32)
    for item in range(first, last):
        row, from_ = item // spans, item % spans * span
        to = min(from_ + span, n)
        start, end = row * n + from_, row * n + to
        left = target[: end - start] if streamed else new[start:end]
        if mode == ADD_OLD:
            _add(rows[start:end], old[start:end], decay, left)
        elif mode == NOTHING_WAITS:
            left[:] = rows[start:end]
        elif streamed:
            left[:] = new[start:end]
        x = rows[start:end] if mode == NO_FEEDBACK else left
        if rotate_first:
            turned[: x.size] = x
            x = turned[: x.size]
            rotate(x)
        found = scales[row * scale_stride + from_ // block_size :]
        for block in range((x.size + block_size - 1) // block_size):
            found[block] = _scale(x[block * block_size : (block + 1) * block_size], size, levels, clip_sigmas, lanes)
        for begin in range(0, x.size, PIECE):
            part, at = x[begin : begin + PIECE], row * code_stride + (from_ + begin) * bits // 8
            if rounding == STOCHASTIC:
                counter = np.uint32(row * tiles * (TILE // 2))
                noise_piece(counter, from_ + begin, low, high, noise[: part.size])
            for inside in range(0, part.size, block_size):
                until = min(inside + block_size, part.size)
                scale = found[(begin + inside) // block_size]
                _round(part[inside:until], scale, rounding, bits, levels, noise[inside:until], piece[inside:until])
            pack_piece(piece, part.size, bits, codes[at:])
            if mode != NO_FEEDBACK:
                for inside in range(0, part.size, block_size):
                    until = min(inside + block_size, part.size)
                    scale, rest = found[(begin + inside) // block_size], part[inside:until]
                    if rotate_first:  # what was rounded is no longer needed: what it decodes to takes its place
                        rest[:] = 0
                    _add_values(piece[inside:until], rounding, bits, scale if rotate_first else -scale, rest)
        if rotate_first and mode != NO_FEEDBACK:
            rotate(x)
            _subtract(x, left)
        if streamed:
            stream_all(left, new, start)
    if streamed:
        fence()


@compiled
def _sum(
    first: int,
    last: int,
    num_rows: int,
    block_size: int,
    span: int,
    rounding: int,
    bits: int,
    rotate_back: bool,
    codes: Array,
    code_stride: int,
    scales: Array,
    scale_stride: int,
    out: Array,
) -> None:
    piece = np.empty(PIECE, np.int8)
    for item in range(first, last):
        start, end = item * span, min((item + 1) * span, out.size)
        for begin in range(start, end, PIECE):
            total = out[begin : min(begin + PIECE, end)]
            total[:] = 0
            for row in range(num_rows):
                at = row * code_stride + begin * bits // 8
                if bits == 8:
                    part = codes[at : at + total.size].view(np.int8)
                else:
                    unpack_piece(codes[at:], total.size, bits, piece)
                    part = piece
                for inside in range(0, total.size, block_size):
                    until = min(inside + block_size, total.size)
                    scale = scales[row * scale_stride + (begin + inside) // block_size]
                    _add_values(part[inside:until], rounding, 8, scale, total[inside:until])
        if rotate_back:
            rotate(out[start:end])


@compiled
def _scale(x: Array, size: int, levels: np.float32, clip_sigmas: float, lanes: Array) -> np.float32:
    """0 for a block that is too small, NaN for one that is not finite."""
    if size == MAX:
        peak = peak_bits(x.view(np.int32))
        if peak >= INFINITY:
            return np.float32(np.nan)
        found = float(np.int32(peak).view(np.float32))
    elif size == L2:
        found = np.sqrt(_lane_sum(x, True, lanes))
    else:
        found = _lane_sum(x, False, lanes) / x.size
    if clip_sigmas > 0:
        found = min(found, clip_sigmas * np.sqrt(_lane_sum(x, True, lanes) / x.size))
    if not found < np.inf:
        return np.float32(np.nan)
    scale = np.float32(min(found / np.float64(levels), HUGE))
    return scale if scale >= TINY else np.float32(0)


@compiled
def _lane_sum(x: Array, squares: bool, lanes: Array) -> float:
    """As `blocks_reference.lane_sums`, of magnitudes or squares."""
    total = 0.0
    for start in range(0, x.size, TILE):
        tile = x[start : min(start + TILE, x.size)]
        lanes[:] = 0
        for i in range(0, tile.size, LANES):
            if squares:
                _add_squares(tile[i : min(i + LANES, tile.size)], lanes)
            else:
                _add_magnitudes(tile[i : min(i + LANES, tile.size)], lanes)
        width = LANES
        while width > 1:
            width //= 2
            for i in range(width):
                lanes[i] = lanes[2 * i] + lanes[2 * i + 1]
        total += lanes[0]
    return total


# The inner loops, over contiguous slices so that LLVM sees plain vectors.


@compiled
def _add_squares(x: Array, lanes: Array) -> None:
    for i in range(x.size):
        lanes[i] += np.float64(x[i]) * np.float64(x[i])


@compiled
def _add_magnitudes(x: Array, lanes: Array) -> None:
    for i in range(x.size):
        lanes[i] += abs(np.float64(x[i]))


@compiled
def _add(rows: Array, old: Array, decay: np.float32, new: Array) -> None:
    for i in range(new.size):
        new[i] = rows[i] + decay * old[i]


@compiled
def _subtract(values: Array, out: Array) -> None:
    for i in range(out.size):
        out[i] -= values[i]


@compiled
def _round(
    x: Array, scale: np.float32, rounding: int, bits: int, levels: np.float32, noise: Array, codes: Array
) -> None:
    """Codes of elements that share a scale."""
    if not scale > 0:
        codes[:] = 0
        return
    inverse = np.float32(1) / scale
    if rounding == NEAREST:
        _round_to_nearest(x, inverse, levels, codes)
    elif rounding == STOCHASTIC:
        if bits == 1:
            _toss(x, inverse, noise, codes)
        else:
            _round_randomly(x, inverse, levels, noise, codes)
    elif rounding == SIGN:
        _signs(x, codes)
    elif rounding == E4M3:
        _to_e4m3(x, inverse, codes)
    else:
        _to_e5m2(x, inverse, codes)


@compiled
def _add_values(codes: Array, rounding: int, bits: int, scale: np.float32, out: Array) -> None:
    """Add what codes decode to; ``bits`` = 1: codes are 0 and 1."""
    if rounding == E4M3:
        _add_e4m3(codes, scale, out)
    elif rounding == E5M2:
        _add_e5m2(codes, scale, out)
    elif bits == 1:
        _add_signs(codes, scale, out)
    else:
        _add_integers(codes, scale, out)


@compiled
def _round_to_nearest(x: Array, inverse: np.float32, levels: np.float32, codes: Array) -> None:
    for i in range(codes.size):
        rounded = (x[i] * inverse + ROUND) - ROUND
        codes[i] = np.int8(np.int32(max(-levels, min(levels, rounded))))


@compiled
def _round_randomly(x: Array, inverse: np.float32, levels: np.float32, noise: Array, codes: Array) -> None:
    for i in range(codes.size):
        t = x[i] * inverse
        whole = np.floor(t)
        rounded = whole + np.float32(np.float32(np.int32(noise[i] >> np.uint32(8))) * UNIT < t - whole)
        codes[i] = np.int8(np.int32(max(-levels, min(levels, rounded))))


@compiled
def _toss(x: Array, inverse: np.float32, noise: Array, codes: Array) -> None:
    half = np.float32(0.5)
    for i in range(codes.size):
        t = x[i] * inverse * half + half
        whole = np.floor(t)
        rounded = whole + np.float32(np.float32(np.int32(noise[i] >> np.uint32(8))) * UNIT < t - whole)
        codes[i] = np.int8(np.int32(max(np.float32(0), min(np.float32(1), rounded))))


@compiled
def _signs(x: Array, codes: Array) -> None:
    for i in range(codes.size):
        codes[i] = np.int8(x[i] >= 0)


@compiled
def _to_e4m3(x: Array, inverse: np.float32, codes: Array) -> None:
    """Nearest, ties to even, of |x| <= 448 (1 + 2^-23): 2^14 has the spacing of e4m3's denormals."""
    for i in range(codes.size):
        y = np.float32(x[i] * inverse)
        bits = np.int32(np.float32(y).view(np.int32))
        magnitude = np.int32(bits & MAGNITUDE)
        normal = np.int32(((magnitude + np.int32(0x7FFFF) + ((magnitude >> 20) & 1)) >> 20) - (120 << 3))
        tiny = np.int32(np.int32(np.float32(abs(y) + np.float32(16384)).view(np.int32)) - np.int32(0x46800000))
        code = tiny if magnitude < np.int32(0x3C800000) else normal
        codes[i] = np.int8(code | ((bits >> 24) & np.int32(0x80)))


@compiled
def _to_e5m2(x: Array, inverse: np.float32, codes: Array) -> None:
    """Nearest, ties to even, of |x| <= 57344 (1 + 2^-23): 2^7 has the spacing of e5m2's denormals."""
    for i in range(codes.size):
        y = np.float32(x[i] * inverse)
        bits = np.int32(np.float32(y).view(np.int32))
        magnitude = np.int32(bits & MAGNITUDE)
        normal = np.int32(((magnitude + np.int32(0xFFFFF) + ((magnitude >> 21) & 1)) >> 21) - (112 << 2))
        tiny = np.int32(np.int32(np.float32(abs(y) + np.float32(128)).view(np.int32)) - np.int32(0x43000000))
        code = tiny if magnitude < np.int32(0x38800000) else normal
        codes[i] = np.int8(code | ((bits >> 24) & np.int32(0x80)))


@compiled
def _add_integers(codes: Array, scale: np.float32, out: Array) -> None:
    for i in range(out.size):
        out[i] += np.float32(codes[i]) * scale


@compiled
def _add_signs(codes: Array, scale: np.float32, out: Array) -> None:
    for i in range(out.size):
        out[i] += scale if codes[i] else -scale


@compiled
def _add_e4m3(codes: Array, scale: np.float32, out: Array) -> None:
    """By arithmetic: looking 256 values up in a table takes longer."""
    for i in range(out.size):
        code = np.int32(codes[i])
        magnitude = np.int32(code & 127)
        normal = np.int32((magnitude << 20) + (120 << 23)).view(np.float32)
        value = np.float32(magnitude) * np.float32(2.0**-9) if magnitude < 8 else normal
        out[i] += (-value if code < 0 else value) * scale


@compiled
def _add_e5m2(codes: Array, scale: np.float32, out: Array) -> None:
    for i in range(out.size):
        code = np.int32(codes[i])
        magnitude = np.int32(code & 127)
        normal = np.int32((magnitude << 21) + (112 << 23)).view(np.float32)
        value = np.float32(magnitude) * np.float32(2.0**-16) if magnitude < 4 else normal
        out[i] += (-value if code < 0 else value) * scale
