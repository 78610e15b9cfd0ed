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

from comm_compress.kernels.bits_cuda import code_at
from comm_compress.kernels.block_code import TRITS, BlockCode
from comm_compress.kernels.random_cuda import as_fractions, noise_at
from comm_compress.kernels.residual import Residual
from comm_compress.kernels.triton_tools import TILE, as_int32, launch, power_of_two, row_stride, target_at

LONGEST = 4096  # elements of a block that one program holds
TILES = 4  # of 1024 elements, that one program sums

TINY, HUGE = tl.constexpr(1.1754943508222875e-38), tl.constexpr(3.4028234663852886e38)
INFINITE, MAGNITUDE = tl.constexpr(0x7F800000), tl.constexpr(0x7FFFFFFF)
ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds half to even
NORMALISE = tl.constexpr(0.1767766922712326)  # 32^-1/2 as float32
SUMMED = tl.constexpr(1024)  # elements that are summed before sums are added: `blocks_reference.TILE`


def encode_blocks(
    rows: Tensor,
    code: BlockCode,
    key: tuple[int, int] | None,
    codes: Tensor,
    scales: Tensor,
    residual: Residual | None = None,
) -> None:
    """As `blocks_reference.encode_blocks`."""
    num_rows, n = rows.shape
    rows = rows if rows.stride(1) == 1 or n == 1 else rows.contiguous()
    old, decay, new = (None, 1.0, None) if residual is None else (residual.old, residual.decay, residual.new)
    source = (rows, old, n, row_stride(rows), 0 if old is None else row_stride(old), decay)
    to = (new, codes, codes.shape[1], scales, *(0 if t is None else row_stride(t) for t in (new, codes, scales)))
    low, high = (as_int32(word) for word in key or (0, 0))
    whole_row, blocks, block = code.block(n) >= n, code.blocks(n), code.block(n)
    padded = max(power_of_two(min(block, n)), 32 if code.rotate else 8)
    size = {"LEVELS": code.levels, "SIZE": code.size, "CLIP": code.clip_sigmas, "ROTATE": code.rotate}
    rounding = {"LEVELS": code.levels, "BITS": code.bits or 0, "ROUNDING": code.rounding, "ROTATE": code.rotate}
    if padded <= LONGEST:
        together = min(max(1, TILE // padded), power_of_two(blocks))
        # of a row that is one block the length is no constant: every length would be compiled
        shape = {
            "BLOCK": padded if whole_row else block,
            "PADDED": padded,
            "BLOCKS": together,
            "num_warps": warps(together * padded),
        }
        grid = (triton.cdiv(blocks, together), num_rows)
        fused = code.bits is not None
        launch(_encode, grid, *source, *to, low, high, **size | rounding, **shape, FUSED=fused)
        if fused:
            return
    else:
        block = min(block, n)
        tiles = triton.cdiv(block, 1024)  # in a block
        found = torch.empty(2, num_rows, blocks * tiles, dtype=torch.float64, device=rows.device)
        grid = (triton.cdiv(blocks * tiles, TILES), num_rows)
        launch(_tile_sizes, grid, *source, *found, blocks, tiles, block, **size, TILES=TILES)
        size.pop("ROTATE")
        launch(_combine, (blocks, num_rows), *found, blocks, tiles, block, n, scales, row_stride(scales), **size)
    block, columns = columns_of(code.block(n), n) if code.bits is not None else (0 if whole_row else code.block(n), 8)
    shape = {"BLOCK": block, "ROWS": TILE // columns, "COLUMNS": columns, "num_warps": warps(TILE)}
    in_tile = TILE if code.bits is not None else TILE // 8 * TRITS
    launch(_round, (triton.cdiv(n, in_tile), num_rows), *source, *to, low, high, **rounding, **shape)


def decode_blocks(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    """As `blocks_reference.decode_blocks`."""
    _decode_to(codes, scales, code, out, SUM=False)


def sum_blocks(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    """As `blocks_reference.sum_blocks`."""
    _decode_to(codes, scales, code, out.unsqueeze(0), SUM=True)


def _decode_to(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor, SUM: bool) -> None:
    n, num_rows = out.shape[1], codes.shape[0]
    block, columns = columns_of(code.block(n), n)
    launch(
        _decode,
        (triton.cdiv(n, TILE), out.shape[0]),
        *(codes, scales, out, n, codes.shape[1], num_rows, row_stride(codes), row_stride(scales), row_stride(out)),
        BLOCK=block,
        BITS=code.bits or 0,
        ROUNDING=code.rounding,
        ROTATE=code.rotate,
        SUM=SUM,
        ROWS=TILE // columns,
        COLUMNS=columns,
        num_warps=warps(TILE),
    )


def columns_of(block: int, n: int) -> tuple[int, int]:
    """BLOCK (0: one for the row) and COLUMNS of a tile: a block in each line where blocks divide tiles."""
    if block >= n:
        return 0, TILE
    return block, block if TILE % block == 0 else TILE


def warps(elements: int) -> int:
    """How many share a tile: 16 elements a thread, at most 8 warps."""
    return min(8, max(1, elements // 512))


# Parts of the kernels


@triton.jit
def _rotated(x, i, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Every 32 elements of ``[ROWS, COLUMNS]`` rotated, but those after the last multiple of 32 of a row."""
    y = tl.reshape(x * NORMALISE, [ROWS * COLUMNS])
    for log in tl.static_range(5):
        y = tl.permute(tl.reshape(y, [ROWS * COLUMNS // 2 >> log, 2, 1 << log]), [0, 2, 1])
        a, b = tl.split(y)
        y = tl.reshape(tl.permute(tl.join(a + b, a - b), [0, 2, 1]), [ROWS * COLUMNS])
    return tl.where(i < n - n % 32, tl.reshape(y, [ROWS, COLUMNS]), x)


@triton.jit
def _peaks(x):
    """float64 of the largest magnitude in each row of a float32 tensor: its bits order like it, NaN above infinity."""
    bits = tl.max(x.to(tl.int32, bitcast=True) & MAGNITUDE, axis=1)
    return bits.to(tl.float32, bitcast=True).to(tl.float64)


@triton.jit
def lane_sums(
    rows, old, decay, start, stop, n, ROWS: tl.constexpr, STEPS: tl.constexpr, SIZE: tl.constexpr, CLIP: tl.constexpr,
    ROTATE: tl.constexpr,
):  # fmt: skip
    """float64 sums of magnitudes and of squares (or of what is above 0 and what is below) of ``[start, stop)``.

    For each of ROWS tiles, in lanes of 32.
    """
    total = tl.zeros([ROWS, 32], tl.float64)
    squares = tl.zeros([ROWS, 32], tl.float64)
    for step in range(STEPS):
        i = (start + step * 32)[:, None] + tl.arange(0, 32)[None, :]
        x = target_at(rows, old, decay, i, i < stop[:, None])
        if ROTATE:
            x = _rotated(x, i, n, ROWS, 32)
        wide = x.to(tl.float64)
        if SIZE == "sides":
            total += tl.where(x <= 0, 0.0, wide)  # a NaN is on both
            squares += tl.where(x >= 0, 0.0, wide)
        if SIZE == "mean":
            total += tl.abs(wide)
        if SIZE == "l2" or CLIP > 0:
            squares += wide * wide
    return _pairs(total, ROWS), _pairs(squares, ROWS)


@triton.jit
def _pairs(x, ROWS: tl.constexpr):
    """``[ROWS, 32]`` to ``[ROWS]``: neighbours are added until one is left."""
    for log in tl.static_range(5):
        a, b = tl.split(tl.reshape(x, [ROWS, 16 >> log, 2]))
        x = a + b
    return tl.reshape(x, [ROWS])


@triton.jit
def _scale(peak, total, squares, length, LEVELS: tl.constexpr, SIZE: tl.constexpr, CLIP: tl.constexpr):
    """The float32 scale of blocks of ``length`` elements, all float64."""
    if SIZE == "max":
        size = peak
    elif SIZE == "l2":
        size = tl.sqrt(squares)
    else:
        size = total / length
    if CLIP > 0:
        size = tl.minimum(size, tl.full([], CLIP, tl.float64) * tl.sqrt(squares / length))
    found = tl.minimum(size / tl.full([], LEVELS, tl.float64), tl.full([], HUGE, tl.float64)).to(tl.float32)
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
def store_packed(
    codes, code, block, num_bytes, BITS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Pack ``code`` int32 ``[ROWS, COLUMNS]``, 0 beyond the row: line r is block ``block[r]``, BLOCK codes of it."""
    start = block[:, None] * (BLOCK // 8 * BITS)
    code = code & ((1 << BITS) - 1)
    if 8 % BITS == 0:
        width: tl.constexpr = COLUMNS // 8 * BITS
        place = (tl.arange(0, 8 // BITS) * BITS)[None, None, :]
        octet = tl.sum(tl.reshape(code, [ROWS, width, 8 // BITS]) << place, axis=2)
        column = tl.arange(0, width)[None, :]
        mask = start + column < num_bytes
        if BLOCK < COLUMNS:
            mask = mask & (column < BLOCK // 8 * BITS)
        tl.store(codes + start + column, octet.to(tl.uint8), mask=mask)
    else:  # 8 codes become BITS bytes
        place = (tl.arange(0, 8) * BITS)[None, None, :]
        word = tl.sum(tl.reshape(code, [ROWS, COLUMNS // 8, 8]).to(tl.int64) << place, axis=2)
        column = tl.arange(0, COLUMNS // 8)[None, :]
        for j in tl.static_range(BITS):
            byte = start + column * BITS + j
            mask = (byte < num_bytes) & (column < BLOCK // 8)
            tl.store(codes + byte, ((word >> (8 * j)) & 255).to(tl.uint8), mask=mask)


@triton.jit
def _leave(new, code, scale, target, i, mask, n, BITS: tl.constexpr, ROUNDING: tl.constexpr, ROTATE: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """Store what the codes lose of the target."""
    value = _values(code, BITS, ROUNDING) * scale
    if ROTATE:
        value = _rotated(value, i, n, ROWS, COLUMNS)
    tl.store(new + i, target - value, mask=mask)


# Kernels. Axis 1 of every grid counts rows.


@triton.jit(do_not_specialize=["low", "high"])
def _encode(
    rows, old, n, row_stride, old_stride, decay, new, codes, num_bytes, scales,
    new_stride, code_stride, scale_stride, low, high,
    LEVELS: tl.constexpr, SIZE: tl.constexpr, CLIP: tl.constexpr, ROTATE: tl.constexpr, BITS: tl.constexpr,
    ROUNDING: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr, BLOCKS: tl.constexpr, FUSED: tl.constexpr,
):  # fmt: skip
    """BLOCKS blocks of BLOCK elements: scales, and where FUSED everything else."""
    row = tl.program_id(1).to(tl.int64)
    rows += row * row_stride
    if old is not None:
        old += row * old_stride
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    start = block * BLOCK
    stop = tl.minimum(start + BLOCK, n)
    i = start[:, None] + tl.arange(0, PADDED)[None, :]
    mask = i < n
    if BLOCK < PADDED:
        mask = mask & (tl.arange(0, PADDED) < BLOCK)[None, :]
    target = target_at(rows, old, decay, i, mask)
    x = target
    if ROTATE:
        x = _rotated(target, i, n, BLOCKS, PADDED)
    peak = tl.zeros([BLOCKS], tl.float64)
    total = tl.zeros([BLOCKS], tl.float64)
    squares = tl.zeros([BLOCKS], tl.float64)
    if SIZE == "max":
        peak = _peaks(x)
    if SIZE != "max" or CLIP > 0:
        summed: tl.constexpr = PADDED if PADDED < 1024 else 1024
        steps: tl.constexpr = (summed + 31) // 32
        for first in tl.static_range(0, PADDED, summed):
            more, more_squares = lane_sums(rows, old, decay, start + first, stop, n, BLOCKS, steps, SIZE, CLIP, ROTATE)
            total += more
            squares += more_squares
    length = tl.maximum(stop - start, 1).to(tl.float64)
    scale = _scale(peak, total, squares, length, LEVELS, SIZE, CLIP)
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
            x = _rotated(x, i, n, TILES, SUMMED)
        tl.store(found + number, _peaks(x), mask=mask)
    if SIZE != "max" or CLIP > 0:
        total, squares = lane_sums(rows, old, decay, start, stop, n, TILES, SUMMED // 32, SIZE, CLIP, ROTATE)
        if SIZE == "mean":
            tl.store(found + number, total, mask=mask)
        tl.store(squared + number, squares, mask=mask)


@triton.jit
def _combine(
    found, squared, blocks, tiles, block_size, n, scales, scale_stride,
    LEVELS: tl.constexpr, SIZE: tl.constexpr, CLIP: tl.constexpr,
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
        peak = tl.max(bits, axis=0).to(tl.float32, bitcast=True).to(tl.float64)
    for t in range(0, tiles, 16):
        for j in tl.static_range(16):  # loads that do not wait for each other
            there = t + j < tiles
            if SIZE == "mean":
                total += tl.load(found + t + j, mask=there, other=0.0)
            if SIZE == "l2" or CLIP > 0:
                squares += tl.load(squared + t + j, mask=there, other=0.0)
    length = tl.minimum(block_size, n - block * block_size).to(tl.float64)
    scale = _scale(peak, total, squares, length, LEVELS, SIZE, CLIP)
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
    line = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    if BITS == 0:
        i = line[:, None] * 5 + column
        mask = (i < n) & (column < 5)
    else:
        i = line[:, None] * COLUMNS + column
        mask = i < n
    target = target_at(rows, old, decay, i, mask)
    x = target
    if ROTATE:
        tl.static_assert(BITS != 0, "five trits do not divide 32 elements")
        x = _rotated(target, i, n, ROWS, COLUMNS)
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
def scale_at(scales, i, mask, BITS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The scales of a tile of elements ``i``: a scalar, one for every line, or one for every element."""
    if BLOCK == 0:
        scale = tl.load(scales)
    elif BITS != 0 and BLOCK == COLUMNS:
        line = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
        scale = tl.load(scales + line, mask=tl.max(mask.to(tl.int32), axis=1, keep_dims=True) > 0, other=0.0)
    elif BITS != 0 and BLOCK % (ROWS * COLUMNS) == 0:
        scale = tl.load(scales + tl.program_id(0) // (BLOCK // (ROWS * COLUMNS)))
    else:
        scale = tl.load(scales + i // BLOCK, mask=mask, other=0.0)
    return scale


@triton.jit
def _decode(
    codes, scales, out, n, num_bytes, num_rows, code_stride, scale_stride, out_stride, BLOCK: tl.constexpr,
    BITS: tl.constexpr, ROUNDING: tl.constexpr, ROTATE: tl.constexpr, SUM: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of this row, decoded, or (SUM) of the sum of all ``num_rows``, in row order and rotated back once."""
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
    i = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    if ROTATE:
        x = _rotated(x, i, n, ROWS, COLUMNS)
    tl.store(out + row * out_stride + i, x.to(out.dtype.element_ty), mask=i < n)


@triton.jit
def _decoded(
    codes, scales, n, num_bytes, BLOCK: tl.constexpr, BITS: tl.constexpr, ROUNDING: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    line = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    i = line * COLUMNS + tl.arange(0, COLUMNS)[None, :]
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
def unpacked(codes, line, num_bytes, BITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """int32 ``[ROWS, COLUMNS]``: codes of a power of two bits, every byte loaded once; ``line`` ``[ROWS, 1]``."""
    width: tl.constexpr = COLUMNS // 8 * BITS
    byte = line * width + tl.arange(0, width)[None, :]
    octet = tl.load(codes + byte, mask=byte < num_bytes, other=0).to(tl.int32)
    place = (tl.arange(0, 8 // BITS) * BITS)[None, None, :]
    return tl.reshape((octet[:, :, None] >> place) & ((1 << BITS) - 1), [ROWS, COLUMNS])


@triton.jit
def _trit_at(packed, i, mask):
    """int32: the codes number ``i`` of five in a byte."""
    digits = tl.load(packed + i // 5, mask=mask, other=0).to(tl.int32)
    place = i % 5
    for j in tl.static_range(4):
        digits = tl.where(j < place, digits // 3, digits)
    return digits % 3 - 1
