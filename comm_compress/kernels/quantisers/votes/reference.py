"""Votes on the sign of every element: the definition in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels.elements.random.reference import random_bits
from comm_compress.kernels.packing.bits import reference as bits_reference
from comm_compress.kernels.quantisers.blocks.reference import in_blocks

ALL_ZERO, FINITE, NOT_FINITE = 0, 1, 2  # what a group's mark says


def encode(rows: Tensor, group_size: int, key: tuple[int, int], marks: Tensor, bits: Tensor) -> None:
    peaks = in_blocks(rows, group_size).abs().amax(-1)
    marks.copy_(torch.where(torch.isfinite(peaks), torch.where(peaks > 0, FINITE, ALL_ZERO), NOT_FINITE))
    coins = (random_bits(key, rows.numel(), rows.device) & 1).view(rows.shape)
    bits_reference.pack(torch.where(rows == 0, coins, rows > 0), 1, bits)


def decode(marks: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    out.copy_(_decoded(marks, bits, group_size, out.shape[1]))


def majority(marks: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    votes = _decoded(marks, bits, group_size, out.numel()).sum(0)
    out.copy_(torch.where(votes.isnan(), torch.nan, votes.sign() * marks.shape[0]))


def weights(marks: Tensor) -> Tensor:
    """Float32, of ``marks``' shape: what a group's votes count."""
    return torch.where(marks <= FINITE, marks.float(), torch.nan)


def _decoded(marks: Tensor, bits: Tensor, group_size: int, n: int) -> Tensor:
    signs = in_blocks(bits_reference.unpack(bits, 1, n, torch.uint8), group_size) * 2 - 1
    return (signs * weights(marks).unsqueeze(-1)).flatten(1)[:, :n] + 0.0  # no negative zeros
