"""Block codes as Triton kernels: the reference's bytes.

Where a program holds whole blocks, one kernel does it all in one pass over memory: the target of error feedback, sizes,
scales, codes, packing, and what the codes lose. Longer blocks (whole rows, mostly) and trits, five of which share a
byte with no regard to blocks, take two: scales first (of partial sizes, one for each tile of 1024), then the rest.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.elements.random.triton import as_fractions, noise_at
from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.packing.bits.triton import code_at
from comm_compress.kernels.quantisers.blocks.block_code import TRITS, BlockCode
from comm_compress.kernels.tools.triton.launching import MAGNITUDE, ROUND, TILE, as_int32, launch, row_stride, target_at
from comm_compress.kernels.tools.triton.tiles import (
    SUMMED,
    block_sums,
    blocks_here,
    decode_tiles,
    lane_sums,
    peak_bits,
    rotated,
    scale_at,
    store_packed,
    tile_here,
    tiles,
    unpacked,
    whole_blocks,
)

TILES = 4  # of 1024 elements, that one program sums

TINY, HUGE = tl.constexpr(1.1754943508222875e-38), tl.constexpr(3.4028234663852886e38)
SHORT_HUGE = tl.constexpr(3.3895313892515355e38)  # bfloat16's


def encode(
    rows: Tensor,
    code: BlockCode,
    key: tuple[int, int] | None,
    codes: Tensor,
    scales: Tensor,
    residual: Residual | None = None,
) -> None:
    old, decay, new = residual or (None, 1.0, None)
    _encode_target(rows, old, decay, new, code, key, codes, scales)


def encode_difference(
    a: Tensor, b: Tensor, code: BlockCode, key: tuple[int, int] | None, codes: Tensor, scales: Tensor
) -> bool:
    _encode_target(a.unsqueeze(0), b.unsqueeze(0), -1.0, None, code, key, codes, scales)  # a product with -1 is exact
    return bool(torch.isfinite(scales).all())


def _encode_target(
    rows: Tensor,
    old: Tensor | None,
    decay: float,
    new: Tensor | None,
    code: BlockCode,
    key: tuple[int, int] | None,
    codes: Tensor,
    scales: Tensor,
) -> None:
    """`encode` of ``rows + decay * old``; what the codes lose goes to ``new``, unless that is None."""
    num_rows, n = rows.shape
    rows = rows if rows.stride(1) == 1 or n == 1 else rows.contiguous()
    source = (rows, old, n, row_stride(rows), row_stride(old), decay)
    to = (new, codes, codes.shape[1], scales, *map(row_stride, (new, codes, scales)))
    low, high = (as_int32(word) for word in key or (0, 0))
    size = {"LEVELS": code.levels, "SIZE": code.size, "CLIP": code.clip_sigmas, "ROTATE": code.rotate}
    short = {"SHORT": code.short_scales}
    rounding = {"LEVELS": code.levels, "BITS": code.bits or 0, "ROUNDING": code.rounding, "ROTATE": code.rotate}
    whole = whole_blocks(code.block(n), n, 32 if code.rotate else 8)
    if whole is not None:
        fused = code.bits is not None
        grid = (whole.programs, num_rows)
        launch(_encode, grid, *source, *to, low, high, **size | rounding | short, **whole.shape, FUSED=fused)
        if fused:
            return
    else:
        block, blocks = min(code.block(n), n), code.blocks(n)
        in_block = triton.cdiv(block, 1024)  # tiles
        found = torch.empty(2, num_rows, blocks * in_block, dtype=torch.float64, device=rows.device)
        grid = (triton.cdiv(blocks * in_block, TILES), num_rows)
        launch(_tile_sizes, grid, *source, *found, blocks, in_block, block, **size, TILES=TILES)
        size.pop("ROTATE")
        place = (blocks, in_block, block, n, scales, row_stride(scales))
        launch(_combine, (blocks, num_rows), *found, *place, **size, **short)
    programs, shape = tiles(code.block(n), n)
    if code.bits is None:  # a line is a byte
        programs = triton.cdiv(n, TILE // 8 * TRITS)
        shape |= {"ROWS": TILE // 8, "COLUMNS": 8}
    launch(_round, (programs, num_rows), *source, *to, low, high, **rounding, **shape)


def decode(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    _decode_to(codes, scales, code, out, add=False)


def decode_sum(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    decode(codes, scales, code, out)  # one row: the sum


def decode_add(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    _decode_to(codes, scales, code, out.unsqueeze(0), add=True)  # a row, not a sum: zeros keep their signs


def _decode_to(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor, add: bool) -> None:
    constants = {"BITS": code.bits or 0, "ROUNDING": code.rounding, "ROTATE": code.rotate, "ADD": add}
    decode_tiles(_decode, codes, [scales], code.block(out.shape[-1]), out, **constants)


# Parts of the kernels


@triton.jit
def _as_sizes(bits):
    """float64 of the float32 numbers that have these bits."""
    return bits.to(tl.float32, bitcast=True).to(tl.float64)


@triton.jit
def _scale(
    peak, total, squares, length, LEVELS: tl.constexpr, SIZE: tl.constexpr, CLIP: tl.constexpr, SHORT: tl.constexpr
):
    """The float32 scale of blocks of ``length`` elements, all float64; SHORT: one that bfloat16 has."""
    if SIZE == "max":
        size = peak
    elif SIZE == "l2":
        size = tl.sqrt(squares)
    else:
        size = total / length
    if CLIP > 0:
        size = tl.minimum(size, tl.full([], CLIP, tl.float64) * tl.sqrt(squares / length))
    most = tl.full([], SHORT_HUGE if SHORT else HUGE, tl.float64)
    found = tl.minimum(size / tl.full([], LEVELS, tl.float64), most).to(tl.float32)
    if SHORT:
        bits = found.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
        found = bits.to(tl.float32, bitcast=True)
    found = tl.where(found >= TINY, found, 0.0)
    return tl.where(size < float("inf"), found, float("nan"))


@triton.jit
def _codes(x, scale, row, i, n, low, high, LEVELS: tl.constexpr, BITS: tl.constexpr, ROUNDING: tl.constexpr):
    """int32 codes (fp8: their bits; 1 bit: 0 or 1) of ``x``, 0 where the scale is 0 or NaN.

    ``scale`` has the shape of ``x``, or one column, or is a scalar: a quotient for every block is enough.
    """
    usable = scale > 0
    inverse = tl.where(usable, tl.div_rn(1.0, tl.where(usable, scale, 1.0)), 0.0)
    x = tl.where(usable, x, 0.0)
    if ROUNDING == "nearest":
        t = tl.minimum(tl.maximum(x * inverse, -LEVELS * 1.0), LEVELS * 1.0)  # its bounds are integers
        code = ((t + ROUND) - ROUND).to(tl.int32)
    elif ROUNDING == "sign":
        code = tl.where(usable, (x >= 0).to(tl.int32), 0)
    elif ROUNDING == "stochastic":
        t = x * inverse
        if BITS == 1:
            t = t * 0.5 + 0.5
        whole = tl.floor(t)  # which may take a denormal for 0: -1 and a share of 1, or 0 and one below 0, both give 0
        up = as_fractions(noise_at(row, i, n, low, high)) < t - whole
        rounded = tl.where(up, whole + 1.0, whole)
        rounded = tl.minimum(tl.maximum(rounded, 0.0 if BITS == 1 else -LEVELS * 1.0), LEVELS * 1.0)
        code = tl.where(usable, rounded.to(tl.int32), 0)
    elif ROUNDING == "e4m3":
        code = _float8(x * inverse, EXPONENT=4, MANTISSA=3, LARGEST=0x7E)
    else:
        code = _float8(x * inverse, EXPONENT=5, MANTISSA=2, LARGEST=0x7C)
    return code


@triton.jit
def _float8(x, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr, LARGEST: tl.constexpr):
    """int32: the bits of the 8-bit float nearest to finite ``x``, ties to even, as torch's conversion has them.

    What is too large becomes the largest number (e4m3) or infinity (e5m2).
    """
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & MAGNITUDE
    dropped: tl.constexpr = 23 - MANTISSA
    bias: tl.constexpr = (1 << (EXPONENT - 1)) - 1
    # Below the smallest normal number: a sum whose last bit has the size of the format's
    last: tl.constexpr = (127 - bias + dropped + 1) << 23
    small = magnitude.to(tl.float32, bitcast=True) + tl.full([], last, tl.int32).to(tl.float32, bitcast=True)
    small = small.to(tl.int32, bitcast=True) - last
    odd = (magnitude >> dropped) & 1
    normal = (magnitude + (((bias - 127) << 23) + (1 << (dropped - 1)) - 1) + odd) >> dropped
    code = tl.where(magnitude < ((128 - bias) << 23), small, tl.minimum(normal, LARGEST))
    return code | ((bits >> 24) & 0x80)


@triton.jit
def _values(code, BITS: tl.constexpr, ROUNDING: tl.constexpr):
    """float32: the numbers that codes (as `_codes` gives them) stand for."""
    if ROUNDING == "e4m3":  # as float32 with an exponent 120 too low
        x = (((code & 0x7F) << 20) | ((code & 0x80) << 24)).to(tl.float32, bitcast=True) * 1.329227995784916e36
        x = tl.where((code & 0x7F) == 0x7F, float("nan"), x)
    elif ROUNDING == "e5m2":  # the upper half of a float16
        x = (code << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    elif BITS == 1:
        x = (2 * code - 1).to(tl.float32)
    else:
        x = code.to(tl.float32)
    return x


@triton.jit
def _leave(new, code, scale, target, i, mask, n, BITS: tl.constexpr, ROUNDING: tl.constexpr, ROTATE: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """Store what the codes lose of the target."""
    value = _values(code, BITS, ROUNDING) * scale
    if ROTATE:
        value = rotated(value, i, n, ROWS, COLUMNS)
    tl.store(new + i, target - value, mask=mask)


# Kernels. Axis 1 of every grid counts rows.


@triton.jit(do_not_specialize=["low", "high"])
def _encode(
    rows, old, n, row_stride, old_stride, decay, new, codes, num_bytes, scales,
    new_stride, code_stride, scale_stride, low, high,
    LEVELS: tl.constexpr, SIZE: tl.constexpr, CLIP: tl.constexpr, ROTATE: tl.constexpr, BITS: tl.constexpr,
    ROUNDING: tl.constexpr, SHORT: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr, BLOCKS: tl.constexpr,
    FUSED: tl.constexpr,
):  # fmt: skip
    """BLOCKS blocks of BLOCK elements: scales, and where FUSED everything else."""
    row = tl.program_id(1).to(tl.int64)
    rows += row * row_stride
    if old is not None:
        old += row * old_stride
    block, start, stop, i, mask = blocks_here(n, BLOCK, PADDED, BLOCKS)
    target = target_at(rows, old, decay, i, mask)
    x = target
    if ROTATE:
        x = rotated(target, i, n, BLOCKS, PADDED)
    peak = tl.zeros([BLOCKS], tl.float64)
    total = peak
    squares = peak
    if SIZE == "max":
        peak = _as_sizes(peak_bits(x))
    if SIZE != "max" or CLIP > 0:
        total, squares = block_sums(rows, old, decay, start, stop, n, BLOCKS, PADDED, SIZE, CLIP, ROTATE)
    length = tl.maximum(stop - start, 1).to(tl.float64)
    scale = _scale(peak, total, squares, length, LEVELS, SIZE, CLIP, SHORT)
    tl.store(scales + row * scale_stride + block, scale, mask=start < n)
    if FUSED:
        code = _codes(x, scale[:, None], row, i, n, low, high, LEVELS, BITS, ROUNDING)
        code = tl.where(mask, code, 0)
        store_packed(codes + row * code_stride, code, block, num_bytes, BITS, BLOCK, BLOCKS, PADDED)
        if new is not None:
            new += row * new_stride
            _leave(new, code, scale[:, None], target, i, mask, n, BITS, ROUNDING, ROTATE, BLOCKS, PADDED)


@triton.jit
def _tile_sizes(
    rows, old, n, row_stride, old_stride, decay, found, squared, blocks, tiles, block_size,
    LEVELS: tl.constexpr, SIZE: tl.constexpr, CLIP: tl.constexpr, ROTATE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Peaks or sums, and sums of squares, of the tiles of long blocks; each float64 ``[R, blocks * tiles]``."""
    row = tl.program_id(1).to(tl.int64)
    rows += row * row_stride
    if old is not None:
        old += row * old_stride
    number = tl.program_id(0) * TILES + tl.arange(0, TILES)
    mask = number < blocks * tiles
    block = number // tiles
    start = block * block_size + number % tiles * SUMMED
    stop = tl.minimum(block * block_size + block_size, n)
    number += row * blocks * tiles
    if SIZE == "max":
        i = start[:, None] + tl.arange(0, SUMMED)[None, :]
        x = target_at(rows, old, decay, i, i < stop[:, None])
        if ROTATE:
            x = rotated(x, i, n, TILES, SUMMED)
        tl.store(found + number, _as_sizes(peak_bits(x)), mask=mask)
    if SIZE != "max" or CLIP > 0:
        total, squares = lane_sums(rows, old, decay, start, stop, n, TILES, SUMMED // 32, SIZE, CLIP, ROTATE)
        if SIZE == "mean":
            tl.store(found + number, total, mask=mask)
        tl.store(squared + number, squares, mask=mask)


@triton.jit
def _combine(
    found, squared, blocks, tiles, block_size, n, scales, scale_stride,
    LEVELS: tl.constexpr, SIZE: tl.constexpr, CLIP: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """The scale of one long block from its tiles' peaks or sums, which are added in ascending order."""
    block = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    found += (row * blocks + block) * tiles
    squared += (row * blocks + block) * tiles
    peak = tl.full([], 0, tl.float64)
    total = tl.full([], 0, tl.float64)
    squares = tl.full([], 0, tl.float64)
    if SIZE == "max":
        bits = tl.zeros([SUMMED], tl.int32)
        for t in range(0, tiles, SUMMED):
            place = t + tl.arange(0, SUMMED)
            some = tl.load(found + place, mask=place < tiles, other=0.0).to(tl.float32)
            bits = tl.maximum(bits, some.to(tl.int32, bitcast=True) & MAGNITUDE)
        peak = _as_sizes(tl.max(bits, axis=0))
    for t in range(0, tiles, 16):
        for j in tl.static_range(16):  # loads that do not wait for each other
            there = t + j < tiles
            if SIZE == "mean":
                total += tl.load(found + t + j, mask=there, other=0.0)
            if SIZE == "l2" or CLIP > 0:
                squares += tl.load(squared + t + j, mask=there, other=0.0)
    length = tl.minimum(block_size, n - block * block_size).to(tl.float64)
    scale = _scale(peak, total, squares, length, LEVELS, SIZE, CLIP, SHORT)
    tl.store(scales + row * scale_stride + block, scale)


@triton.jit(do_not_specialize=["low", "high"])
def _round(
    rows, old, n, row_stride, old_stride, decay, new, codes, num_bytes, scales,
    new_stride, code_stride, scale_stride, low, high,
    LEVELS: tl.constexpr, BITS: tl.constexpr, ROUNDING: tl.constexpr, ROTATE: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Codes of a tile by scales that are there already. BLOCK 0: one for the row; BITS 0: trits, 5 of 8 columns."""
    row = tl.program_id(1).to(tl.int64)
    rows += row * row_stride
    if old is not None:
        old += row * old_stride
    line, i = tile_here(ROWS, COLUMNS)
    mask = i < n
    column = tl.arange(0, COLUMNS)[None, :]
    if BITS == 0:
        i = line[:, None] * 5 + column
        mask = (i < n) & (column < 5)
    target = target_at(rows, old, decay, i, mask)
    x = target
    if ROTATE:
        tl.static_assert(BITS != 0, "five trits do not divide 32 elements")
        x = rotated(target, i, n, ROWS, COLUMNS)
    scale = scale_at(scales + row * scale_stride, i, mask, BITS, BLOCK, ROWS, COLUMNS)
    code = _codes(x, scale, row, i, n, low, high, LEVELS, BITS, ROUNDING)
    codes += row * code_stride
    if BITS == 0:
        power = tl.where(column == 0, 1, tl.where(column == 1, 3, tl.where(column == 2, 9, 27)))
        power = tl.where(column < 4, power, 81)
        digit = tl.where(mask, code + 1, 0)
        tl.store(codes + line, tl.sum(digit * power, axis=1).to(tl.uint8), mask=line < num_bytes)
    else:
        store_packed(codes, tl.where(mask, code, 0), line, num_bytes, BITS, COLUMNS, ROWS, COLUMNS)
    if new is not None:
        _leave(new + row * new_stride, code, scale, target, i, mask, n, BITS, ROUNDING, ROTATE, ROWS, COLUMNS)


@triton.jit
def _decode(
    codes, scales, out, n, num_bytes, num_rows, code_stride, scale_stride, out_stride, BLOCK: tl.constexpr,
    BITS: tl.constexpr, ROUNDING: tl.constexpr, ROTATE: tl.constexpr, ADD: tl.constexpr, SUM: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of this row, decoded, or (SUM) of the sum of all ``num_rows``, in row order and rotated back once.

    ADD: added to what is there.
    """
    row = tl.program_id(1).to(tl.int64)
    if SUM:
        x = tl.zeros([ROWS, COLUMNS], tl.float32)
        for _ in range(num_rows):
            x += _decoded(codes, scales, n, num_bytes, BLOCK, BITS, ROUNDING, ROWS, COLUMNS)
            codes += code_stride
            scales += scale_stride
    else:
        codes += row * code_stride
        scales += row * scale_stride
        x = _decoded(codes, scales, n, num_bytes, BLOCK, BITS, ROUNDING, ROWS, COLUMNS)
    _, i = tile_here(ROWS, COLUMNS)
    if ROTATE:
        x = rotated(x, i, n, ROWS, COLUMNS)
    out += row * out_stride + i
    if ADD:
        x += tl.load(out, mask=i < n, other=0).to(tl.float32)
    tl.store(out, x.to(out.dtype.element_ty), mask=i < n)


@triton.jit
def _decoded(
    codes, scales, n, num_bytes, BLOCK: tl.constexpr, BITS: tl.constexpr, ROUNDING: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    line, i = tile_here(ROWS, COLUMNS)
    mask = i < n
    if BITS == 0:
        code = _trit_at(codes, i, mask)
    elif 8 % BITS == 0:
        code = unpacked(codes, line, num_bytes, BITS, ROWS, COLUMNS)
    else:
        code = code_at(codes, i, mask, BITS)
    if BITS > 1 and (ROUNDING == "nearest" or ROUNDING == "stochastic"):  # two's complement
        code = (code ^ (1 << (BITS - 1))) - (1 << (BITS - 1))
    return _values(code, BITS, ROUNDING) * scale_at(scales, i, mask, BITS, BLOCK, ROWS, COLUMNS)


@triton.jit
def _trit_at(packed, i, mask):
    """int32: the codes number ``i`` of five in a byte."""
    digits = tl.load(packed + i // 5, mask=mask, other=0).to(tl.int32)
    place = i % 5
    for j in tl.static_range(4):
        digits = tl.where(j < place, digits // 3, digits)
    return digits % 3 - 1
