"""Bit streams of codes of one width: the definition in torch operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pack(codes: Tensor, bits: int, packed: Tensor) -> None:
    rows, n = codes.shape
    places = torch.arange(bits, device=codes.device, dtype=torch.int32)
    stream = ((codes.int().unsqueeze(-1) >> places) & 1).view(rows, n * bits)
    octets = F.pad(stream, (0, -n * bits % 8)).view(rows, -1, 8)
    packed.copy_((octets << torch.arange(8, device=codes.device, dtype=torch.int32)).sum(-1))


def unpack(packed: Tensor, bits: int, n: int, dtype: torch.dtype = torch.int32) -> Tensor:
    octets = (packed.int().unsqueeze(-1) >> torch.arange(8, device=packed.device, dtype=torch.int32)) & 1
    stream = octets.view(packed.shape[0], -1)[:, : n * bits].view(packed.shape[0], n, bits)
    return (stream << torch.arange(bits, device=packed.device, dtype=torch.int32)).sum(-1, dtype=torch.int32).to(dtype)
