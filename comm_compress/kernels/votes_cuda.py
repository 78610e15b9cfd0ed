"""Votes on signs as Triton kernels: the reference's bytes, in one pass over memory.

Groups that no program holds go to the reference.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels import votes_reference
from comm_compress.kernels.blocks_cuda import LONGEST, columns_of, scale_at, store_packed, unpacked, warps
from comm_compress.kernels.random_cuda import hash_counter
from comm_compress.kernels.triton_tools import TILE, as_int32, launch, power_of_two, row_stride

INFINITE, MAGNITUDE = tl.constexpr(0x7F800000), tl.constexpr(0x7FFFFFFF)


def encode_votes(rows: Tensor, group_size: int, key: tuple[int, int], marks: Tensor, bits: Tensor) -> None:
    """As `votes_reference.encode_votes`."""
    num_rows, n = rows.shape
    padded = max(8, power_of_two(min(group_size, n)))
    if padded > LONGEST:
        votes_reference.encode_votes(rows, group_size, key, marks, bits)
        return
    groups = marks.shape[1]
    together = min(max(1, TILE // padded), power_of_two(groups))
    launch(
        _encode_votes,
        (triton.cdiv(groups, together), num_rows),
        *(rows, marks, bits, n, bits.shape[1], *(row_stride(t) for t in (rows, marks, bits))),
        *(as_int32(word) for word in key),
        GROUP=padded if group_size >= n else group_size,
        PADDED=padded,
        GROUPS=together,
        num_warps=warps(together * padded),
    )


def decode_votes(marks: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    """As `votes_reference.decode_votes`."""
    _decode(marks, bits, group_size, out, SUM=False)


def sum_votes(marks: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    """As `votes_reference.sum_votes`."""
    _decode(marks, bits, group_size, out.unsqueeze(0), SUM=True)


def _decode(marks: Tensor, bits: Tensor, group_size: int, out: Tensor, SUM: bool) -> None:
    n = out.shape[1]
    group, columns = columns_of(group_size, n)
    launch(
        _decode_votes,
        (triton.cdiv(n, TILE), out.shape[0]),
        *(marks, bits, out, n, bits.shape[1], bits.shape[0], *(row_stride(t) for t in (marks, bits, out))),
        GROUP=group,
        SUM=SUM,
        ROWS=TILE // columns,
        COLUMNS=columns,
        num_warps=warps(TILE),
    )


@triton.jit(do_not_specialize=["low", "high"])
def _encode_votes(
    rows, marks, bits, n, num_bytes, row_stride, mark_stride, bit_stride, low, high,
    GROUP: tl.constexpr, PADDED: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    i = (group * GROUP)[:, None] + tl.arange(0, PADDED)[None, :]
    mask = i < n
    if GROUP < PADDED:
        mask = mask & (tl.arange(0, PADDED) < GROUP)[None, :]
    x = tl.load(rows + row * row_stride + i, mask=mask, other=0).to(tl.float32)
    peak = tl.max(x.to(tl.int32, bitcast=True) & MAGNITUDE, axis=1)
    mark = tl.where(peak >= INFINITE, 2, tl.where(peak > 0, 1, 0))
    tl.store(marks + row * mark_stride + group, mark.to(tl.uint8), mask=group * GROUP < n)
    coin = (hash_counter((row * n + i).to(tl.uint32), low, high) & 1).to(tl.int32)
    bit = tl.where(mask, tl.where(x == 0, coin, (x > 0).to(tl.int32)), 0)
    store_packed(bits + row * bit_stride, bit, group, num_bytes, 1, GROUP, GROUPS, PADDED)


@triton.jit
def _decode_votes(
    marks, bits, out, n, num_bytes, num_rows, mark_stride, bit_stride, out_stride,
    GROUP: tl.constexpr, SUM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of this row's votes, or (SUM) of what the ``num_rows`` rows have decided."""
    row = tl.program_id(1).to(tl.int64)
    line = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    i = line * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    if SUM:
        votes = tl.zeros([ROWS, COLUMNS], tl.float32)
        for _ in range(num_rows):
            votes += _vote_at(marks, bits, line, i, n, num_bytes, GROUP, ROWS, COLUMNS)
            marks += mark_stride
            bits += bit_stride
        decided = tl.where(votes > 0, 1.0, tl.where(votes < 0, -1.0, 0.0)) * num_rows
        x = tl.where(votes == votes, decided, float("nan"))
    else:
        marks += row * mark_stride
        x = _vote_at(marks, bits + row * bit_stride, line, i, n, num_bytes, GROUP, ROWS, COLUMNS)
    tl.store(out + row * out_stride + i, x.to(out.dtype.element_ty), mask=i < n)


@triton.jit
def _vote_at(marks, bits, line, i, n, num_bytes, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    mark = scale_at(marks, i, i < n, 1, GROUP, ROWS, COLUMNS).to(tl.float32)
    weight = tl.where(mark < 2, mark, float("nan"))
    sign = (2 * unpacked(bits, line, num_bytes, 1, ROWS, COLUMNS) - 1).to(tl.float32)
    return sign * weight + 0.0  # no negative zeros
