"""The means of both sides of zero as numba kernels: a group is encoded while it lies in the first-level cache."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from comm_compress.kernels.elements.residual.cpu import few_as_float32, load_target, prefetch_target, target_arrays
from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.quantisers.blocks.reference import TILE
from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.threads import over_blocks
from comm_compress.kernels.tools.vectors.nontemporal import NEAR, fence, stream
from comm_compress.kernels.tools.vectors.sign_sums import sum_expanded
from comm_compress.kernels.tools.vectors.vectors import (
    LANES,
    at_least,
    at_most,
    doubles,
    ones,
    splat,
    store_mask,
    sum_of_pairs,
    where,
)


def encode(
    rows: Tensor, group_size: int, above: Tensor, below: Tensor, bits: Tensor, residual: Residual | None = None
) -> None:
    rows, residual = few_as_float32(rows.contiguous(), residual)
    for row in range(rows.shape[0]):
        means = (above[row].numpy(), below[row].numpy(), bits[row].numpy())
        over_blocks(_encode, above.shape[1], group_size, group_size, *target_arrays(rows, residual, row), *means)


def decode(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    for row in range(out.shape[0]):
        one = slice(row, row + 1)
        sum_expanded(bits[one], above[one], below[one], group_size, out[row])


def decode_sum(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    sum_expanded(bits, above, below, group_size, out)


@compiled
def _encode(
    first: int,
    last: int,
    group_size: int,
    rows: Array,
    old: Array,
    decay: np.float32,
    new: Array,
    above: Array,
    below: Array,
    bits: Array,
) -> None:
    zero, zeros, share = np.float32(0), splat(np.float32(0)), splat(decay)
    ahead = group_size if group_size <= NEAR else 0
    for group in range(first, last):
        start, end = group * group_size, min((group + 1) * group_size, rows.size)
        upper, lower, count = 0.0, 0.0, -(-(end - start) % LANES)  # zeros beyond the end count as above
        for tile in range(start, end, TILE):
            upper_sums, lower_sums = doubles(zeros), doubles(zeros)
            for i in range(tile, min(tile + TILE, end), LANES):
                x = load_target(rows, old, share, i, end)
                mask = at_least(x, zero)
                store_mask(bits, i >> 3, end - i, mask)
                count += ones(mask)
                wide = doubles(x)
                upper_sums = where(at_most(x, zero), upper_sums, upper_sums + wide)
                lower_sums = where(mask, lower_sums, lower_sums + wide)
            upper += sum_of_pairs(upper_sums)
            lower += sum_of_pairs(lower_sums)
        above[group] = upper / max(count, 1)
        below[group] = lower / max(end - start - count, 1)
        if new.size:
            of_above, of_below = splat(above[group]), splat(below[group])
            for i in range(start, end, LANES):
                x = load_target(rows, old, share, i, end)
                prefetch_target(rows, old, i + ahead)
                stream(new, i, end, x - where(at_least(x, zero), of_above, of_below))
    fence()
