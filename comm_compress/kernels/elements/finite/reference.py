"""Whether numbers are finite: a NaN or an infinity shows in the extremes."""

from __future__ import annotations

import torch
from torch import Tensor


def all_finite(x: Tensor) -> Tensor:
    low, high = torch.aminmax(x)
    return torch.isfinite(low) & torch.isfinite(high)


def difference(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    return all_finite(torch.sub(a.float(), b.float(), out=out))
