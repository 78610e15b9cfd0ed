"""How one rank's NaN reaches every rank in the collective that meets it."""

from __future__ import annotations

import torch
from torch import Tensor


def all_finite(rows: Tensor) -> Tensor:
    """Return a bool scalar on the tensor's device, in one pass: a NaN or an infinity shows in the extremes."""
    if rows.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=rows.device)
    low, high = torch.aminmax(rows)
    return torch.isfinite(low) & torch.isfinite(high)


def mark(rows: Tensor) -> Tensor:
    """Is all of ``rows`` ``[W, n]`` finite (bool scalar)? If not, put a NaN in front of every row.

    Every rank receives one row from every rank, so that one NaN in one rank's gradient reaches all of
    them in the same collective, without another message.
    """
    if rows.numel() == 0:
        return all_finite(rows)
    finite = all_finite(rows)
    rows[:, 0] = torch.where(finite, rows[:, 0], torch.nan)
    return finite
