"""The means of both sides of zero as Triton kernels, in one pass over memory.

Groups too long for one program are left to the reference.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.quantisers.onebit import reference as onebit_reference
from comm_compress.kernels.tools.triton.launching import launch, row_stride, target_at
from comm_compress.kernels.tools.triton.tiles import (
    block_sums,
    blocks_here,
    decode_tiles,
    scale_at,
    store_packed,
    tile_here,
    unpacked,
    whole_blocks,
)


def encode(
    rows: Tensor, group_size: int, above: Tensor, below: Tensor, bits: Tensor, residual: Residual | None = None
) -> None:
    num_rows, n = rows.shape
    groups = whole_blocks(group_size, n)
    if groups is None:
        onebit_reference.encode(rows, group_size, above, below, bits, residual)
        return
    old, decay, new = residual or (None, 1.0, None)
    launch(
        _encode_means,
        (groups.programs, num_rows),
        *(rows, old, new, above, below, bits, n, bits.shape[1], decay),
        *map(row_stride, (rows, old, new, above, below, bits)),
        **groups.shape,
    )


def decode(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    decode_tiles(_decode_means, bits, (above, below), group_size, out)


def decode_sum(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    decode(above, below, bits, group_size, out)  # one row: the sum


@triton.jit
def _encode_means(
    rows, old, new, above, below, bits, n, num_bytes, decay,
    row_stride, old_stride, new_stride, above_stride, below_stride, bit_stride,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    rows += row * row_stride
    if old is not None:
        old += row * old_stride
    group, start, stop, i, mask = blocks_here(n, BLOCK, PADDED, BLOCKS)
    target = target_at(rows, old, decay, i, mask)
    bit = (mask & (target >= 0)).to(tl.int32)
    sum_above, sum_below = block_sums(rows, old, decay, start, stop, n, BLOCKS, PADDED, "sides", 0, False)
    count = tl.sum(bit, axis=1)
    rest = tl.maximum(stop - start - count, 1).to(tl.float64)
    mean_above = (sum_above / tl.maximum(count, 1).to(tl.float64)).to(tl.float32)
    mean_below = (sum_below / rest).to(tl.float32)
    tl.store(above + row * above_stride + group, mean_above, mask=start < n)
    tl.store(below + row * below_stride + group, mean_below, mask=start < n)
    store_packed(bits + row * bit_stride, bit, group, num_bytes, 1, BLOCK, BLOCKS, PADDED)
    if new is not None:
        value = tl.where(bit > 0, mean_above[:, None], mean_below[:, None])
        tl.store(new + row * new_stride + i, target - value, mask=mask)


@triton.jit
def _decode_means(
    bits, above, below, out, n, num_bytes, num_rows, bit_stride, above_stride, below_stride, out_stride,
    BLOCK: tl.constexpr, SUM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of this row, decoded, or (SUM) of the sum of all ``num_rows`` in row order."""
    row = tl.program_id(1).to(tl.int64)
    line, i = tile_here(ROWS, COLUMNS)
    if SUM:
        x = tl.zeros([ROWS, COLUMNS], tl.float32)
        for _ in range(num_rows):
            x += _mean_at(bits, above, below, line, i, n, num_bytes, BLOCK, ROWS, COLUMNS)
            bits += bit_stride
            above += above_stride
            below += below_stride
    else:
        above += row * above_stride
        below += row * below_stride
        x = _mean_at(bits + row * bit_stride, above, below, line, i, n, num_bytes, BLOCK, ROWS, COLUMNS)
    tl.store(out + row * out_stride + i, x.to(out.dtype.element_ty), mask=i < n)


@triton.jit
def _mean_at(bits, above, below, line, i, n, num_bytes, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    bit = unpacked(bits, line, num_bytes, 1, ROWS, COLUMNS)
    of_above = scale_at(above, i, i < n, 1, BLOCK, ROWS, COLUMNS)
    return tl.where(bit > 0, of_above, scale_at(below, i, i < n, 1, BLOCK, ROWS, COLUMNS))
