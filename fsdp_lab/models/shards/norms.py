"""The norm of all ranks' gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def world_norm(gradients: list[Tensor]) -> Tensor:
    """The norm over all ranks' shards of the gradients, the same on every rank. All ranks call this together."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
