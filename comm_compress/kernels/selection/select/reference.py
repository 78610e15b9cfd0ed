"""Choosing elements by magnitude: the definition in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.tools.scratch import Scratch, fresh

MAGNITUDE = 0x7FFFFFFF
AT_ONCE = 1 << 24  # keys: their 64-bit forms take as many times 16 bytes


def largest(
    rows: Tensor, places: Tensor, values: Tensor, residual: Residual | None = None, scratch: Scratch = fresh
) -> None:
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
    keys = _keys(rows if residual is None else residual.target(rows))
    above = (keys & MAGNITUDE) >= floors.view(torch.int32).unsqueeze(1)
    found = [row.nonzero().flatten() for row in above]
    return [(places.int(), row[places].view(torch.float32)) for places, row in zip(found, keys, strict=True)]


def _keys(rows: Tensor) -> Tensor:
    return rows.contiguous().view(torch.int32)
