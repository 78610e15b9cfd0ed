"""The means of both sides of zero as Triton kernels: the reference's bytes, in one pass over memory.

Groups that no program holds go to the reference.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels import means_reference
from comm_compress.kernels.blocks_cuda import LONGEST, columns_of, lane_sums, scale_at, store_packed, unpacked, warps
from comm_compress.kernels.residual import Residual
from comm_compress.kernels.triton_tools import TILE, launch, power_of_two, row_stride, target_at


def encode_means(
    rows: Tensor, group_size: int, above: Tensor, below: Tensor, bits: Tensor, residual: Residual | None = None
) -> None:
    """As `means_reference.encode_means`."""
    num_rows, n = rows.shape
    padded = max(8, power_of_two(min(group_size, n)))
    if padded > LONGEST:
        means_reference.encode_means(rows, group_size, above, below, bits, residual)
        return
    old, decay, new = (None, 1.0, None) if residual is None else (residual.old, residual.decay, residual.new)
    groups = above.shape[1]
    together = min(max(1, TILE // padded), power_of_two(groups))
    launch(
        _encode_means,
        (triton.cdiv(groups, together), num_rows),
        *(rows, old, new, above, below, bits, n, bits.shape[1], decay),
        *(0 if t is None else row_stride(t) for t in (rows, old, new, above, below, bits)),
        GROUP=padded if group_size >= n else group_size,
        PADDED=padded,
        GROUPS=together,
        num_warps=warps(together * padded),
    )


def decode_means(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    """As `means_reference.decode_means`."""
    _decode(above, below, bits, group_size, out, SUM=False)


def sum_means(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    """As `means_reference.sum_means`."""
    _decode(above, below, bits, group_size, out.unsqueeze(0), SUM=True)


def _decode(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor, SUM: bool) -> None:
    n = out.shape[1]
    group, columns = columns_of(group_size, n)
    launch(
        _decode_means,
        (triton.cdiv(n, TILE), out.shape[0]),
        *(above, below, bits, out, n, bits.shape[1], bits.shape[0]),
        *(row_stride(t) for t in (above, below, bits, out)),
        GROUP=group,
        SUM=SUM,
        ROWS=TILE // columns,
        COLUMNS=columns,
        num_warps=warps(TILE),
    )


@triton.jit
def _encode_means(
    rows, old, new, above, below, bits, n, num_bytes, decay,
    row_stride, old_stride, new_stride, above_stride, below_stride, bit_stride,
    GROUP: tl.constexpr, PADDED: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    rows += row * row_stride
    if old is not None:
        old += row * old_stride
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    start = group * GROUP
    stop = tl.minimum(start + GROUP, n)
    i = start[:, None] + tl.arange(0, PADDED)[None, :]
    mask = i < n
    if GROUP < PADDED:
        mask = mask & (tl.arange(0, PADDED) < GROUP)[None, :]
    target = target_at(rows, old, decay, i, mask)
    bit = (mask & (target >= 0)).to(tl.int32)
    sum_above = tl.zeros([GROUPS], tl.float64)
    sum_below = tl.zeros([GROUPS], tl.float64)
    summed: tl.constexpr = PADDED if PADDED < 1024 else 1024
    steps: tl.constexpr = (summed + 31) // 32
    for first in tl.static_range(0, PADDED, summed):
        more_above, more_below = lane_sums(rows, old, decay, start + first, stop, n, GROUPS, steps, "sides", 0, False)
        sum_above += more_above
        sum_below += more_below
    count = tl.sum(bit, axis=1)
    rest = tl.maximum(stop - start - count, 1).to(tl.float64)
    mean_above = (sum_above / tl.maximum(count, 1).to(tl.float64)).to(tl.float32)
    mean_below = (sum_below / rest).to(tl.float32)
    tl.store(above + row * above_stride + group, mean_above, mask=start < n)
    tl.store(below + row * below_stride + group, mean_below, mask=start < n)
    store_packed(bits + row * bit_stride, bit, group, num_bytes, 1, GROUP, GROUPS, PADDED)
    if new is not None:
        value = tl.where(bit > 0, mean_above[:, None], mean_below[:, None])
        tl.store(new + row * new_stride + i, target - value, mask=mask)


@triton.jit
def _decode_means(
    above, below, bits, out, n, num_bytes, num_rows, above_stride, below_stride, bit_stride, out_stride,
    GROUP: tl.constexpr, SUM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of this row, decoded, or (SUM) of the sum of all ``num_rows`` in row order."""
    row = tl.program_id(1).to(tl.int64)
    line = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    i = line * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    if SUM:
        x = tl.zeros([ROWS, COLUMNS], tl.float32)
        for _ in range(num_rows):
            x += _mean_at(above, below, bits, line, i, n, num_bytes, GROUP, ROWS, COLUMNS)
            above += above_stride
            below += below_stride
            bits += bit_stride
    else:
        above += row * above_stride
        below += row * below_stride
        x = _mean_at(above, below, bits + row * bit_stride, line, i, n, num_bytes, GROUP, ROWS, COLUMNS)
    tl.store(out + row * out_stride + i, x.to(out.dtype.element_ty), mask=i < n)


@triton.jit
def _mean_at(above, below, bits, line, i, n, num_bytes, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    bit = unpacked(bits, line, num_bytes, 1, ROWS, COLUMNS)
    of_above = scale_at(above, i, i < n, 1, GROUP, ROWS, COLUMNS)
    return tl.where(bit > 0, of_above, scale_at(below, i, i < n, 1, GROUP, ROWS, COLUMNS))
