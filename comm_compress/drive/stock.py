"""Torch's own collectives over parts of tensors, with nothing around them: nobody counts their bytes or their time.

``sizes``: how many rows of ``dim`` each rank has; None: the same on all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from comm_compress.drive._compat import all_gather_single, reduce_scatter_single


def all_reduce(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum of ``x`` over the ranks, in its dtype, in new memory."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def all_gather(x: Tensor, dim: int, sizes: Sequence[int] | None, group: dist.ProcessGroup) -> Tensor:
    """Return all ranks' ``x`` joined along ``dim``."""
    x = x.contiguous()
    if sizes is None:
        together = x.new_empty((group.size() * x.shape[0], *x.shape[1:]) if x.dim() else (group.size(),))
        all_gather_single(together, x, group=group)
        return together if dim == 0 else torch.cat(together.chunk(group.size()), dim)
    # gloo cannot gather parts of different sizes, and everyone can broadcast them
    parts = [x.new_empty((*x.shape[:dim], size, *x.shape[dim + 1 :])) for size in sizes]
    parts[group.rank()] = x
    pending = [dist.broadcast(part, group=group, group_src=r, async_op=True) for r, part in enumerate(parts)]
    for work in pending:
        if work is not None:  # None: this rank does not belong to the group
            work.wait()
    return torch.cat(parts, dim)


def reduce_scatter(x: Tensor, dim: int, sizes: Sequence[int] | None, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's part of ``dim`` of the sum of ``x`` over the ranks, in its dtype."""
    if sizes is None:
        rows = x.contiguous() if dim == 0 else torch.cat(x.chunk(group.size(), dim))
        total = rows.new_empty((rows.shape[0] // group.size(), *rows.shape[1:]))
        reduce_scatter_single(total, rows, group=group)
        return total
    parts = [part.contiguous() for part in torch.split(x, list(sizes), dim)]
    total = torch.empty_like(parts[group.rank()])
    dist.reduce_scatter(total, parts, group=group)
    return total
