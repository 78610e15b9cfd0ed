"""Rows cut in blocks, as the tiles that programs of Triton kernels hold; axis 1 of a grid counts rows.

Two shapes: BLOCKS whole blocks of BLOCK elements, in PADDED columns each, for what must see a block at once; and
ROWS x COLUMNS elements with no regard to blocks, for what has its scales already. A line of the second is a block
where blocks divide tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.tools.triton.launching import (
    MAGNITUDE,
    TILE,
    launch,
    power_of_two,
    row_stride,
    target_at,
    warps,
)

LONGEST = 4096  # elements of a block that one program holds

SUMMED = tl.constexpr(1024)  # elements that are summed before sums are added: `blocks.reference.TILE`
NORMALISE = tl.constexpr(0.1767766922712326)  # 32^-1/2 as float32


class Tiles(NamedTuple):
    """How many programs share a row, and the constants of their kernel that say which elements are whose."""

    programs: int
    shape: dict[str, int]


def whole_blocks(block: int, n: int, least: int = 8) -> Tiles | None:
    """BLOCKS whole blocks a program, at least ``least`` columns each; None where no program holds a block."""
    padded = max(power_of_two(min(block, n)), least)
    if padded > LONGEST:
        return None
    blocks = triton.cdiv(n, block)
    together = min(max(1, TILE // padded), power_of_two(blocks))
    # of a row that is one block the length is no constant: every length would be compiled
    shape = {"BLOCK": padded if block >= n else block, "PADDED": padded, "BLOCKS": together}
    return Tiles(triton.cdiv(blocks, together), {**shape, "num_warps": warps(together * padded)})


def tiles(block: int, n: int) -> Tiles:
    """ROWS x COLUMNS elements a program; BLOCK is 0 where a row is one."""
    columns = block if block < n and TILE % block == 0 else TILE
    shape = {"BLOCK": 0 if block >= n else block, "ROWS": TILE // columns, "COLUMNS": columns}
    return Tiles(triton.cdiv(n, TILE), {**shape, "num_warps": warps(TILE)})


def decode_tiles(
    kernel: Any, codes: Tensor, fields: Sequence[Tensor], block: int, out: Tensor, **constants: Any
) -> None:
    """Decode rows of ``codes`` and of ``fields``, which a block has one of each of, tile by tile.

    To ``out`` ``[R, n]`` each row, to ``[n]`` their sum (SUM). The kernel takes codes, fields, out, n, num_bytes,
    num_rows, and the strides of codes, fields and out.
    """
    to = out if out.dim() == 2 else out.unsqueeze(0)
    n, message = to.shape[1], (codes, *fields)
    programs, shape = tiles(block, n)
    arguments = *message, to, n, codes.shape[1], codes.shape[0], *map(row_stride, (*message, to))
    launch(kernel, (programs, to.shape[0]), *arguments, **constants, **shape, SUM=out.dim() == 1)


# Which elements are whose


@triton.jit
def blocks_here(n, BLOCK: tl.constexpr, PADDED: tl.constexpr, BLOCKS: tl.constexpr):
    """This program's blocks, where they start and stop, ``[BLOCKS]``; their elements and whether they are theirs."""
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    start = block * BLOCK
    stop = tl.minimum(start + BLOCK, n)
    i = start[:, None] + tl.arange(0, PADDED)[None, :]
    mask = i < n
    if BLOCK < PADDED:
        mask = mask & (tl.arange(0, PADDED) < BLOCK)[None, :]
    return block, start, stop, i, mask


@triton.jit
def tile_here(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The numbers of this program's lines ``[ROWS]`` in the row, and their elements ``[ROWS, COLUMNS]``."""
    line = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    return line, line[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


# What a block has one of


@triton.jit
def peak_bits(x):
    """int32: the bits of the largest magnitude in each row of a float32 tensor; NaN comes above infinity."""
    return tl.max(x.to(tl.int32, bitcast=True) & MAGNITUDE, axis=1)


@triton.jit
def block_sums(
    rows, old, decay, start, stop, n, BLOCKS: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr,
    CLIP: tl.constexpr, ROTATE: tl.constexpr,
):  # fmt: skip
    """`lane_sums` of whole blocks: their tiles' sums in ascending order."""
    total = tl.zeros([BLOCKS], tl.float64)
    squares = tl.zeros([BLOCKS], tl.float64)
    summed: tl.constexpr = PADDED if PADDED < SUMMED else SUMMED
    steps: tl.constexpr = (summed + 31) // 32
    for first in tl.static_range(0, PADDED, summed):
        more, more_squares = lane_sums(rows, old, decay, start + first, stop, n, BLOCKS, steps, SIZE, CLIP, ROTATE)
        total += more
        squares += more_squares
    return total, squares


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
            x = rotated(x, i, n, ROWS, 32)
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
def rotated(x, i, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Every 32 elements of ``[ROWS, COLUMNS]`` rotated, but those after the last multiple of 32 of a row."""
    y = tl.reshape(x * NORMALISE, [ROWS * COLUMNS])
    for log in tl.static_range(5):
        y = tl.permute(tl.reshape(y, [ROWS * COLUMNS // 2 >> log, 2, 1 << log]), [0, 2, 1])
        a, b = tl.split(y)
        y = tl.reshape(tl.permute(tl.join(a + b, a - b), [0, 2, 1]), [ROWS * COLUMNS])
    return tl.where(i < n - n % 32, tl.reshape(y, [ROWS, COLUMNS]), x)


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


# Packed codes


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
def unpacked(codes, line, num_bytes, BITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """int32 ``[ROWS, COLUMNS]``: codes of a power of two bits, every byte loaded once."""
    width: tl.constexpr = COLUMNS // 8 * BITS
    byte = line[:, None] * width + tl.arange(0, width)[None, :]
    octet = tl.load(codes + byte, mask=byte < num_bytes, other=0).to(tl.int32)
    place = (tl.arange(0, 8 // BITS) * BITS)[None, None, :]
    return tl.reshape((octet[:, :, None] >> place) & ((1 << BITS) - 1), [ROWS, COLUMNS])
