"""How one rank's NaN reaches every rank in the collective that meets it."""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress import kernels


def all_finite(rows: Tensor) -> Tensor:
    """Return a bool scalar on the tensor's device, in one pass."""
    if rows.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=rows.device)
    return kernels.finite(rows).all_finite(rows)


def mark(rows: Tensor) -> Tensor:
    """Is all of ``rows`` ``[W, n]`` finite (bool scalar)? If not, put a NaN in front of every row.

    Every rank receives one row from every rank, so that one NaN in one rank's gradient reaches all of
    them in the same collective, without another message.
    """
    if rows.numel() == 0:
        return all_finite(rows)
    finite = all_finite(rows)
    if rows.is_cuda:  # nobody waits to know
        rows[:, 0] = torch.where(finite, rows[:, 0], torch.nan)
    elif not finite:
        rows[:, 0] = torch.nan
    return finite
