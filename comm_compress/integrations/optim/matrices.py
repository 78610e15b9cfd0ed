"""The matrices that an optimizer needs whole, and which rows of each a rank has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from comm_compress.core.segments import Segment, rows_of_rank, segments_of

SENT = torch.bfloat16
"""What rows are sent in: Newton-Schulz begins with this dtype, so that nothing that it would see is lost."""


class Matrix(NamedTuple):
    """One matrix ``[A, B]``: a parameter (``shards``) of each rank that this process is, with ``rows`` of it."""

    name: str
    shape: tuple[int, int]
    shards: tuple[nn.Parameter, ...]
    rows: tuple[slice, ...]

    @property
    def has_gradient(self) -> bool:
        """Has every rank that this process is a gradient of its part?"""
        return all(shard.grad is not None for shard in self.shards)


class Unit(NamedTuple):
    """Matrices that are gathered at once; ``world`` ranks have rows of each, as FSDP2 divides them."""

    name: str
    matrices: tuple[Matrix, ...]
    world: int

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Where each matrix lies in a row of the gather."""
        return segments_of([(matrix.name, matrix.shape) for matrix in self.matrices], self.world)

    def row(self, updates: Sequence[Tensor], out: Tensor) -> Tensor:
        """Lay one rank's ``updates``, its rows of each matrix, side by side in ``out`` ``[n]``, padded with zeros."""
        for update, segment in zip(updates, self.segments, strict=True):
            place = out[segment.start : segment.stop]
            place[: update.numel()].view_as(update).copy_(update)
            place[update.numel() :].zero_()
        return out

    @property
    def width(self) -> int:
        """The elements of one rank's row, padding included."""
        return self.segments[-1].stop if self.matrices else 0


def matrices(model: nn.Module, modules: Iterable[str]) -> dict[str, dict[str, nn.Parameter]]:
    """Return the matrices below each of ``modules`` of ``model``, by their full names: what Muon is for.

    These are the trainable parameters of two dimensions; a module without any is left out. Of a language model give the
    blocks: embeddings, head, norms and biases are AdamW's (Jordan 2024). ValueError for a name of no module.
    """
    by_unit: dict[str, dict[str, nn.Parameter]] = {}
    known = dict(model.named_modules())
    named = dict(model.named_parameters())
    for unit in modules:
        if unit not in known:
            raise ValueError(f"modules: the model has no {unit!r}")
        inside = {n: p for n, p in named.items() if n.startswith(f"{unit}.") and p.ndim == 2 and p.requires_grad}
        by_unit |= {unit: inside} if inside else {}
    return by_unit


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, detached, in the tensor's own memory."""
    mine = tensor.detach()
    return mine.to_local() if isinstance(mine, DTensor) else mine


def matrix_of_shards(name: str, shards: Sequence[nn.Parameter]) -> Matrix:
    """Return the matrix of which ``shards`` are all ranks' rows, in their order. ValueError where they cannot be."""
    total, world = sum(shard.shape[0] for shard in shards), len(shards)
    rows = tuple(rows_of_rank(total, rank, world) for rank in range(world))
    fits = all(s.ndim == 2 and s.shape[0] == r.stop - r.start for s, r in zip(shards, rows, strict=True))
    if not fits:
        shapes = ", ".join(str(tuple(shard.shape)) for shard in shards)
        raise ValueError(f"{name}: {shapes} are not the rows that FSDP2 gives {world} ranks of a matrix")
    return Matrix(name, (total, shards[0].shape[1]), tuple(shards), rows)


def check_units(units: Mapping[str, Mapping[str, object]]) -> None:
    """ValueError when there is nothing to optimise, or a unit is empty."""
    if not units:
        raise ValueError("units: there is no matrix; Muon is for matrices, AdamW for everything else")
    if empty := [name for name, held in units.items() if not held]:
        raise ValueError(f"units: {empty[0]!r} has no matrix")
