"""Bitmaps with few ones: the definition in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor


def mark_bits(places: Tensor, bitmap: Tensor) -> None:
    bits = (1 << (places & 7)).to(torch.uint8)
    bitmap.copy_(torch.zeros_like(bitmap).scatter_add_(1, (places >> 3).long(), bits))


def marked_bits(bitmap: Tensor, k: int) -> Tensor:
    octets = (bitmap.unsqueeze(-1) >> torch.arange(8, device=bitmap.device, dtype=torch.uint8)) & 1
    # torch adds up a vector with all of a GPU, and each row of a matrix with one multiprocessor
    counts = torch.stack([row.cumsum(0, dtype=torch.int32) for row in octets.flatten(1)])
    wanted = torch.arange(1, k + 1, device=bitmap.device, dtype=torch.int32).expand(bitmap.shape[0], k)
    return torch.searchsorted(counts, wanted.contiguous(), out_int32=True)
