"""Strings of bits with few ones: positions to bits and back, in plain torch operations."""

from __future__ import annotations

import torch
from torch import Tensor


def mark_bits(places: Tensor, bitmap: Tensor) -> None:
    """Write into ``bitmap`` uint8 ``[R, m]`` a one at each of ``places`` int32 ``[R, k]`` (distinct), zeros elsewhere.

    Bit j of a row is bit ``j % 8`` of byte ``j // 8``.
    """
    bits = (1 << (places & 7)).to(torch.uint8)
    bitmap.copy_(torch.zeros_like(bitmap).scatter_add_(1, (places >> 3).long(), bits))


def marked_bits(bitmap: Tensor, k: int) -> Tensor:
    """int32 ``[R, k]``: where the first ``k`` ones of each row of ``bitmap`` uint8 ``[R, m]`` lie, ascending.

    Every row must hold ``k`` ones.
    """
    octets = (bitmap.unsqueeze(-1) >> torch.arange(8, device=bitmap.device, dtype=torch.uint8)) & 1
    counts = octets.flatten(1).cumsum(1, dtype=torch.int32)
    wanted = torch.arange(1, k + 1, device=bitmap.device, dtype=torch.int32).expand(bitmap.shape[0], k)
    return torch.searchsorted(counts, wanted.contiguous(), out_int32=True)
