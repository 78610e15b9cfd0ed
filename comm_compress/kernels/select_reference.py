"""Choosing coordinates by magnitude, in plain torch operations.

Keys are int32 and compared without their sign bit, so the bits of float32 values order by magnitude, with
infinity above every number and NaN above infinity.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAGNITUDE = 0x7FFFFFFF
AT_ONCE = 1 << 24  # keys: their 64-bit forms take as many times 16 bytes


def magnitude_keys(rows: Tensor) -> Tensor:
    """int32 ``[R, n]``: the bits of ``rows`` as float32, sign included."""
    return rows.float().contiguous().view(torch.int32)


def largest(keys: Tensor, k: int) -> Tensor:
    """int32 ``[R, k]``: where the ``k`` largest keys of each row lie, ascending; of equal keys the first are taken.

    ``keys`` int32 ``[R, n]``, ``0 <= k <= n``.
    """
    n = keys.shape[1]
    places = torch.arange(n, device=keys.device)
    found = torch.empty(keys.shape[0], k, dtype=torch.int32, device=keys.device)
    rows_at_once = max(1, AT_ONCE // max(n, 1))
    for part, out in zip(torch.split(keys, rows_at_once), torch.split(found, rows_at_once), strict=True):
        distinct = ((part & MAGNITUDE).long() << 32) - places
        out.copy_(distinct.topk(k, dim=1, sorted=False).indices.sort(dim=1).values)
    return found


def at_least(keys: Tensor, floors: Tensor) -> list[Tensor]:
    """For each row r the ascending int32 positions of its keys that are at least ``floors[r]``.

    ``keys`` int32 ``[R, n]``, ``floors`` int32 ``[R]``, not negative.
    """
    above = (keys & MAGNITUDE) >= floors.unsqueeze(1)
    return [row.nonzero().flatten().int() for row in above]
