"""Codes of three states, five to a byte: the definition in torch operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

TRITS = 5  # in a byte: 3^5 = 243


def pack(codes: Tensor, packed: Tensor) -> None:
    digits = F.pad(codes + 1, (0, -codes.shape[1] % TRITS)).view(codes.shape[0], -1, TRITS)
    powers = torch.tensor([3**i for i in range(TRITS)], dtype=torch.int32, device=codes.device)
    packed.copy_((digits * powers).sum(-1, dtype=torch.int32))


def unpack(packed: Tensor, n: int) -> Tensor:
    powers = torch.tensor([3**i for i in range(TRITS)], dtype=torch.int32, device=packed.device)
    digits = packed.int().unsqueeze(-1) // powers % 3 - 1
    return digits.view(packed.shape[0], -1)[:, :n].to(torch.int8)
