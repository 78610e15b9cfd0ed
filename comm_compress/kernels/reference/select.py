"""Choosing coordinates by magnitude, in plain torch operations.

Keys are the bits of float32 values, compared as integers without their sign: magnitudes in order, with infinity
above every number and NaN above infinity.

With a `Residual`, what is chosen from is its target, which is left in ``residual.new``: selecting then costs no
second pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels.common.residual import Residual
from comm_compress.kernels.common.scratch import Scratch, fresh

MAGNITUDE = 0x7FFFFFFF
AT_ONCE = 1 << 24  # keys: their 64-bit forms take as many times 16 bytes


def largest(
    rows: Tensor, places: Tensor, values: Tensor, residual: Residual | None = None, scratch: Scratch = fresh
) -> None:
    """Where the k largest of each row lie, ascending, and what they are; of equal magnitudes the first are taken.

    ``rows`` float32 ``[R, n]``; ``places`` int32 and ``values`` float32, both ``[R, k]``, contiguous, written.
    """
    keys = _keys(rows if residual is None else residual.target(rows))
    n, k = rows.shape[1], places.shape[1]
    order = torch.arange(n, device=rows.device)
    rows_at_once = max(1, AT_ONCE // max(n, 1))
    for part, out in zip(torch.split(keys, rows_at_once), torch.split(places, rows_at_once), strict=True):
        distinct = ((part & MAGNITUDE).long() << 32) - order
        out.copy_(distinct.topk(k, dim=1, sorted=False).indices.sort(dim=1).values)
    values.copy_(keys.gather(1, places.long()).view(torch.float32))


def at_least(
    rows: Tensor, floors: Tensor, residual: Residual | None = None, scratch: Scratch = fresh
) -> list[tuple[Tensor, Tensor]]:
    """For each row r the ascending int32 places of the values that reach ``floors[r]``, and the float32 values.

    ``rows`` float32 ``[R, n]``; ``floors`` float32 ``[R]``, not negative. What is returned may lie in ``scratch``.
    """
    keys = _keys(rows if residual is None else residual.target(rows))
    above = (keys & MAGNITUDE) >= floors.view(torch.int32).unsqueeze(1)
    found = [row.nonzero().flatten() for row in above]
    return [(places.int(), row[places].view(torch.float32)) for places, row in zip(found, keys, strict=True)]


def _keys(rows: Tensor) -> Tensor:
    return rows.contiguous().view(torch.int32)
