"""The rounds of collectives over activations: tensors of any shape as rows for a compressor, and back.

What a collective gives is new memory, the caller's own; everything between lies in the state's workspace.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from comm_compress.core import nonfinite
from comm_compress.core.compressor import Codec, Compressor
from comm_compress.core.encoded import Encoded
from comm_compress.core.rounds import ExchangeParts, GatherParts, Reduced, Request
from comm_compress.core.state import State

Rounds = Generator[Request, Any, Tensor]
SPARE = 16  # whole tokens are kept together where that adds at most one element to so many


def all_reduce(x: Tensor, method: Compressor, state: State) -> Rounds:
    """The sum of ``x`` over the ranks, in its shape and dtype: summed in float32 by each row's owner, gathered.

    All ranks decode the same bytes in both halves, their own among them, so all end with the same numbers.
    """
    rows = _rows_of(x, state)
    reduced: Reduced = yield from method.reduce_scatter(rows, state)
    mine = reduced.total if rows.dtype == torch.float32 else reduced.total.to(rows.dtype)
    out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    back = state.child("gather")
    back.output = out
    _leave(out, (yield from method.all_gather(mine, back)))
    return out.view(-1)[: x.numel()].view(x.shape)


def all_gather(x: Tensor, dim: int, method: Compressor, state: State) -> Rounds:
    """All ranks' ``x`` joined along ``dim``; every rank's has the same shape."""
    world, before, row = state.world, math.prod(x.shape[:dim]), x.reshape(-1)
    out = x.new_empty((*x.shape[:dim], world * x.shape[dim], *x.shape[dim + 1 :]))
    if before == 1:  # ranks' parts lie one after another
        state.output = out.view(world, -1) if out.numel() else out.view(world, 0)
        _leave(state.output, (yield from method.all_gather(row, state)))
        return out
    state.output = state.scratch("gathered", (world, row.numel()), x.dtype, x.device)
    gathered = yield from method.all_gather(row, state)
    out.view(before, world, -1).copy_(gathered.view(world, before, -1).transpose(0, 1)) if out.numel() else out
    return out


def reduce_scatter(x: Tensor, dim: int, method: Compressor, state: State) -> Rounds:
    """This rank's part of ``dim`` of the sum of ``x`` over the ranks, summed in float32, in the dtype of ``x``."""
    world, before = state.world, math.prod(x.shape[:dim])
    out = x.new_empty((*x.shape[:dim], x.shape[dim] // world, *x.shape[dim + 1 :]))
    if before == 1:
        rows = x.reshape(world, out.numel())
    else:
        rows = state.scratch("rows", (world, out.numel()), x.dtype, x.device)
        parts = x.reshape(*x.shape[:dim], world, *out.shape[dim:]).movedim(dim, 0)
        rows.view(parts.shape).copy_(parts)
    state.output = out
    reduced: Reduced = yield from method.reduce_scatter(_marked(rows, state), state)
    _leave(out, reduced.total)
    return out


def all_gather_parts(x: Tensor, dim: int, sizes: Sequence[int], codec: Codec, state: State) -> Rounds:
    """All ranks' ``x`` joined along ``dim``, of which rank r has ``sizes[r]`` rows; ``codec``: of fixed size."""
    shapes = [(*x.shape[:dim], size, *x.shape[dim + 1 :]) for size in sizes]
    numels = [math.prod(shape) for shape in shapes]
    layouts = [codec.layout(n, x.dtype) for n in numels]
    message = codec.encode(x.reshape(1, -1), state)
    received: list[Tensor] = yield GatherParts(message, tuple(layout.row_bytes for layout in layouts))
    out = x.new_empty((*x.shape[:dim], sum(sizes), *x.shape[dim + 1 :]))
    parts = torch.split(out, list(sizes), dim)
    for part, row, layout, n in zip(parts, received, layouts, numels, strict=True):
        encoded = Encoded(row.unsqueeze(0), layout, n, scratch=state.scratch)
        if part.is_contiguous():
            codec.decode_into(encoded, part.view(1, n))
        else:
            part.copy_(codec.decode(encoded).view(part.shape))
    return out


def reduce_scatter_parts(x: Tensor, dim: int, sizes: Sequence[int], codec: Codec, state: State) -> Rounds:
    """This rank's ``sizes[rank]`` rows of ``dim`` of the sum of ``x`` over the ranks; ``codec``: of fixed size."""
    parts = torch.split(x, list(sizes), dim)
    finite = bool(nonfinite.all_finite(x))
    messages = []
    for rank, part in enumerate(parts):
        row = part.reshape(1, -1)
        if not finite and row.numel():
            row = row.clone()
            row[:, 0] = torch.nan  # every rank receives a part
        messages.append(codec.encode(row, state.child(f"to {rank}")))
    received: Encoded = yield ExchangeParts(tuple(messages))
    out = torch.empty(parts[state.rank].shape, dtype=x.dtype, device=x.device)
    state.output = out
    _leave(out, codec.sum_into(received, state.result((out.numel(),), out.device)))
    return out


def row_length(shape: torch.Size, world: int) -> int:
    """How many elements each of ``world`` equal rows has that hold a tensor of this shape, padding included.

    Whole tokens (the last dimension) where that costs little, so that a block of elements lies within one token.
    """
    numel, features = math.prod(shape), max(1, shape[-1]) if shape else 1
    least, whole = math.ceil(numel / world), math.ceil(numel // features / world) * features
    return whole if whole <= least + least // SPARE else least


def _rows_of(x: Tensor, state: State) -> Tensor:
    """``x`` as ``[W, n]``, row after row, zeros after its end: a view where nothing is added."""
    world, n = state.world, row_length(x.shape, state.world)
    if world * n == x.numel():
        return x.reshape(world, n)
    rows = state.scratch("rows", (world, n), x.dtype, x.device)
    flat = rows.view(-1)
    flat[: x.numel()].view(x.shape).copy_(x)
    flat[x.numel() :] = 0
    return rows


def _marked(rows: Tensor, state: State) -> Tensor:
    """``rows``, or a copy with a NaN in front of every row where any of them is not finite, for every rank to see.

    An all-reduce and an all-gather need no mark: what they bring, they bring to everyone.
    """
    if not rows.is_cuda and bool(nonfinite.all_finite(rows)):
        return rows
    marked = state.scratch("marked", tuple(rows.shape), rows.dtype, rows.device).copy_(rows)
    nonfinite.mark(marked)
    return marked


def _leave(out: Tensor, result: Tensor) -> None:
    """Have ``result`` lie in ``out``, where a method may have written it already."""
    if result.data_ptr() != out.data_ptr():
        out.copy_(result.view(out.shape))
