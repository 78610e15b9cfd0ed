"""Sums of rows of signs, for CPU kernels."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.threads import over_blocks
from comm_compress.kernels.tools.vectors.vectors import (
    LANES,
    above,
    below,
    bits_of,
    load_mask,
    rows_in_line,
    splat,
    store,
    where,
)


def sum_expanded(bits: Tensor, a: Tensor, b: Tensor, block_size: int, out: Tensor, vote: bool = False) -> None:
    """The sum over rows, in their order, of a block's ``a`` where the bit is 1, else ``b``: no row is ever held.

    ``bits`` uint8 ``[R, ceil(n / 8)]``, ``a`` and ``b`` float32 ``[R, ceil(n / block_size)]``, blocks of whole bytes;
    ``out`` ``[n]`` of any float dtype. ``vote``: R times the sum's sign instead.
    """
    line, stride = rows_in_line(bits)
    over_blocks(_sum, a.shape[1], block_size, block_size, line, stride, a.numpy(), b.numpy(), vote, bits_of(out))


@compiled
def _sum(
    first: int, last: int, block_size: int, bits: Array, stride: int, a: Array, b: Array, vote: bool, out: Array
) -> None:
    zero, everyone, num_rows = np.float32(0), np.float32(a.shape[0]), a.shape[0]
    for block in range(first, last):
        start, end = block * block_size, min((block + 1) * block_size, out.size)
        for i in range(start, end, LANES):
            total = splat(zero)
            for row in range(num_rows):
                mask = load_mask(bits, row * stride + (i >> 3), end - i)
                total = total + where(mask, splat(a[row, block]), splat(b[row, block]))
            if vote:
                against = where(below(total, zero), splat(-everyone), total)  # a tie stays 0, a NaN NaN
                total = where(above(total, zero), splat(everyone), against)
            store(out, i, end, total)
