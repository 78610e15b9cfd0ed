"""The means of both sides of zero, and a bit that says which: the definition in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.packing.bits import reference as bits_reference
from comm_compress.kernels.quantisers.blocks.reference import in_blocks, lane_sums


def encode(
    rows: Tensor, group_size: int, above: Tensor, below: Tensor, bits: Tensor, residual: Residual | None = None
) -> None:
    target = rows.float() if residual is None else residual.target(rows)
    x, at_least = in_blocks(target, group_size), target >= 0
    count = in_blocks(at_least, group_size).double().sum(-1)
    rest = in_blocks(~at_least, group_size).double().sum(-1)
    above.copy_(lane_sums(torch.where(x <= 0, 0, x)) / count.clamp(min=1))
    below.copy_(lane_sums(torch.where(x >= 0, 0, x)) / rest.clamp(min=1))
    bits_reference.pack(at_least.view(torch.uint8), 1, bits)
    if residual is not None:
        target.sub_(_decoded(above, below, bits, group_size, rows.shape[1]))


def decode(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    out.copy_(_decoded(above, below, bits, group_size, out.shape[1]))


def decode_sum(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    out.zero_()
    for row in _decoded(above, below, bits, group_size, out.numel()):
        out += row


def _decoded(above: Tensor, below: Tensor, bits: Tensor, group_size: int, n: int) -> Tensor:
    of_above = in_blocks(bits_reference.unpack(bits, 1, n, torch.uint8), group_size) > 0
    return torch.where(of_above, above.unsqueeze(-1), below.unsqueeze(-1)).flatten(1)[:, :n]
