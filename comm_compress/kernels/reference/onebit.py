"""The means of the elements above and below zero, and a bit that says which: definitions in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels.common.residual import Residual
from comm_compress.kernels.reference import bits as bits_reference
from comm_compress.kernels.reference.blocks import in_blocks, lane_sums


def encode_means(
    rows: Tensor, group_size: int, above: Tensor, below: Tensor, bits: Tensor, residual: Residual | None = None
) -> None:
    """Write the means of both sides of every group, and the packed bits "x >= 0", of float ``rows`` ``[R, n]``, n > 0.

    ``above`` and ``below`` float32 ``[R, ceil(n / group_size)]``: the mean of the group's elements >= 0 and of those
    < 0, 0 where there are none; sums are float64 in the order of `lane_sums`. A NaN counts as below zero and makes
    both means NaN. ``bits`` uint8 ``[R, ceil(n / 8)]``. With a ``residual``, its target is encoded and
    ``residual.new`` becomes what that loses.
    """
    target = rows.float() if residual is None else residual.target(rows)
    x, at_least = in_blocks(target, group_size), target >= 0
    count = in_blocks(at_least, group_size).double().sum(-1)
    rest = in_blocks(~at_least, group_size).double().sum(-1)
    above.copy_(lane_sums(torch.where(x <= 0, 0, x)) / count.clamp(min=1))
    below.copy_(lane_sums(torch.where(x >= 0, 0, x)) / rest.clamp(min=1))
    bits_reference.pack(at_least.view(torch.uint8), 1, bits)
    if residual is not None:
        target.sub_(_decoded(above, below, bits, group_size, rows.shape[1]))


def decode_means(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    """The mean of every element's side, to ``out`` ``[R, n]`` of any float dtype."""
    out.copy_(_decoded(above, below, bits, group_size, out.shape[1]))


def sum_means(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    """The sum of the decoded rows, accumulated in row order, to ``out`` float32 ``[n]``."""
    out.zero_()
    for row in _decoded(above, below, bits, group_size, out.numel()):
        out += row


def _decoded(above: Tensor, below: Tensor, bits: Tensor, group_size: int, n: int) -> Tensor:
    of_above = in_blocks(bits_reference.unpack(bits, 1, n, torch.uint8), group_size) > 0
    return torch.where(of_above, above.unsqueeze(-1), below.unsqueeze(-1)).flatten(1)[:, :n]
