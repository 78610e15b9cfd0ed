"""Bases of the space that a factor's columns span."""

from __future__ import annotations

import torch
from torch import Tensor


def orthonormal(factor: Tensor) -> Tensor:
    """An orthonormal basis of the columns' span (Householder; columns that depend on others get any direction)."""
    peak = factor.abs().amax()
    basis: Tensor = torch.linalg.qr(factor / torch.where(peak > 0, peak, 1)).Q
    return basis
