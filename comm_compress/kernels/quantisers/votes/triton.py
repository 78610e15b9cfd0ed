"""Votes on the sign of every element as Triton kernels, in one pass over memory.

Groups too long for one program are left to the reference.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.elements.random.triton import hash_counter
from comm_compress.kernels.quantisers.votes import reference as votes_reference
from comm_compress.kernels.tools.triton.launching import INFINITE, as_int32, launch, row_stride
from comm_compress.kernels.tools.triton.tiles import (
    blocks_here,
    decode_tiles,
    peak_bits,
    scale_at,
    store_packed,
    tile_here,
    unpacked,
    whole_blocks,
)


def encode(rows: Tensor, group_size: int, key: tuple[int, int], marks: Tensor, bits: Tensor) -> None:
    num_rows, n = rows.shape
    groups = whole_blocks(group_size, n)
    if groups is None:
        votes_reference.encode(rows, group_size, key, marks, bits)
        return
    launch(
        _encode_votes,
        (groups.programs, num_rows),
        *(rows, marks, bits, n, bits.shape[1], *map(row_stride, (rows, marks, bits))),
        *(as_int32(word) for word in key),
        **groups.shape,
    )


def decode(marks: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    decode_tiles(_decode_votes, bits, (marks,), group_size, out)


def majority(marks: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    decode(marks, bits, group_size, out)  # one row: the sum


@triton.jit(do_not_specialize=["low", "high"])
def _encode_votes(
    rows, marks, bits, n, num_bytes, row_stride, mark_stride, bit_stride, low, high,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    group, start, _, i, mask = blocks_here(n, BLOCK, PADDED, BLOCKS)
    x = tl.load(rows + row * row_stride + i, mask=mask, other=0).to(tl.float32)
    peak = peak_bits(x)
    mark = tl.where(peak >= INFINITE, 2, tl.where(peak > 0, 1, 0))
    tl.store(marks + row * mark_stride + group, mark.to(tl.uint8), mask=start < n)
    coin = (hash_counter((row * n + i).to(tl.uint32), low, high) & 1).to(tl.int32)
    bit = tl.where(mask, tl.where(x == 0, coin, (x > 0).to(tl.int32)), 0)
    store_packed(bits + row * bit_stride, bit, group, num_bytes, 1, BLOCK, BLOCKS, PADDED)


@triton.jit
def _decode_votes(
    bits, marks, out, n, num_bytes, num_rows, bit_stride, mark_stride, out_stride,
    BLOCK: tl.constexpr, SUM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of this row's votes, or (SUM) of what the ``num_rows`` rows have decided."""
    row = tl.program_id(1).to(tl.int64)
    line, i = tile_here(ROWS, COLUMNS)
    if SUM:
        votes = tl.zeros([ROWS, COLUMNS], tl.float32)
        for _ in range(num_rows):
            votes += _vote_at(bits, marks, line, i, n, num_bytes, BLOCK, ROWS, COLUMNS)
            bits += bit_stride
            marks += mark_stride
        decided = tl.where(votes > 0, 1.0, tl.where(votes < 0, -1.0, 0.0)) * num_rows
        x = tl.where(votes == votes, decided, float("nan"))
    else:
        marks += row * mark_stride
        x = _vote_at(bits + row * bit_stride, marks, line, i, n, num_bytes, BLOCK, ROWS, COLUMNS)
    tl.store(out + row * out_stride + i, x.to(out.dtype.element_ty), mask=i < n)


@triton.jit
def _vote_at(bits, marks, line, i, n, num_bytes, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    mark = scale_at(marks, i, i < n, 1, BLOCK, ROWS, COLUMNS).to(tl.float32)
    weight = tl.where(mark < 2, mark, float("nan"))
    sign = (2 * unpacked(bits, line, num_bytes, 1, ROWS, COLUMNS) - 1).to(tl.float32)
    return sign * weight + 0.0  # no negative zeros
