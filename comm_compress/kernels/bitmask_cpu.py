"""Signs as bits and back, for CPU kernels: bit i % 8 of byte i // 8, unused bits zero."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from comm_compress.kernels.numba_tools import Array, compiled, over_blocks
from comm_compress.kernels.vectors import (
    LANES,
    above,
    at_least,
    below,
    bits_of,
    load,
    load_mask,
    rows_in_line,
    splat,
    store,
    store_mask,
    where,
)


@compiled
def pack_signs(values: Array, out: Array) -> None:
    """Bits "x >= 0" of ``values`` (see `vectors.bits_of`) to ``out``, uint8 ``[ceil(n / 8)]``."""
    for i in range(0, values.size, LANES):
        store_mask(out, i >> 3, values.size - i, at_least(load(values, i, values.size), np.float32(0)))


@compiled
def expand_signs(bits: Array, a: np.float32, b: np.float32, out: Array) -> None:
    """``a`` where the bit is 1, else ``b``, to ``out`` (see `vectors.bits_of`)."""
    first, second = splat(a), splat(b)
    for i in range(0, out.size, LANES):
        store(out, i, out.size, where(load_mask(bits, i >> 3, out.size - i), first, second))


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
