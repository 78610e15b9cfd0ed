"""Trits: definitions in torch operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

TRITS = 5  # in a byte: 3^5 = 243


def pack_trits(codes: Tensor, packed: Tensor) -> None:
    """Five codes a byte: byte j is the sum of (code[5j + i] + 1) * 3^i for i from 0 to 4.

    ``codes`` int8 ``[R, n]`` of -1, 0, 1; ``packed`` uint8 ``[R, ceil(n / 5)]`` is written. Codes beyond n are -1.
    """
    digits = F.pad(codes + 1, (0, -codes.shape[1] % TRITS)).view(codes.shape[0], -1, TRITS)
    powers = torch.tensor([3**i for i in range(TRITS)], dtype=torch.int32, device=codes.device)
    packed.copy_((digits * powers).sum(-1, dtype=torch.int32))


def unpack_trits(packed: Tensor, n: int) -> Tensor:
    """int8 ``[R, n]``: the codes that `pack_trits` wrote."""
    powers = torch.tensor([3**i for i in range(TRITS)], dtype=torch.int32, device=packed.device)
    digits = packed.int().unsqueeze(-1) // powers % 3 - 1
    return digits.view(packed.shape[0], -1)[:, :n].to(torch.int8)
