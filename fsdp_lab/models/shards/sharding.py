"""Which part of a parameter a rank holds: FSDP2's rows (slices along the first dimension) of the piece it was given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from fsdp_lab.models.shards.pieces import Piece


@dataclass(frozen=True)
class Chunk:
    """A rectangle of a parameter: where it is in what this process holds, and where in the whole."""

    here: tuple[slice, ...]
    whole: tuple[slice, ...]


class Held(NamedTuple):
    """What this process holds of one parameter: a tensor to write to, and what its rectangles are of the whole."""

    local: Tensor
    chunks: list[Chunk]

    def fill(self, whole: Any) -> None:
        """Copy from ``whole``: a tensor, or a file's slice that reads only what it is indexed for."""
        for chunk in self.chunks:
            self.local[chunk.here].copy_(whole[chunk.whole])


def rows_of_rank(rows: int, rank: int, world: int) -> slice:
    """FSDP2's rule: each rank holds ceil(rows / W) rows of dim 0; the last ranks hold fewer, or none."""
    each = -(-rows // world)
    return slice(min(rank * each, rows), min((rank + 1) * each, rows))


def held(parameter: Tensor, piece: Piece | None = None) -> Held:
    """What this process holds of ``parameter``, which is ``piece`` of a whole one (None: is whole), or FSDP2's part."""
    local, rows = parameter.detach(), slice(0, parameter.shape[0])
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        (dim,) = [i for i, placement in enumerate(parameter.placements) if isinstance(placement, Shard)]
        local = parameter.to_local().detach()
        rows = rows_of_rank(parameter.shape[0], mesh.get_local_rank(dim), mesh.size(dim))
        assert local.shape[0] == rows.stop - rows.start, "FSDP2 shards dim 0 evenly"
    return Held(local, [chunk for chunk in _chunks(parameter, rows, piece) if local[chunk.here].numel()])


def _chunks(parameter: Tensor, rows: slice, piece: Piece | None) -> Iterator[Chunk]:
    here = slice(0, rows.stop - rows.start)
    if piece is None:
        yield Chunk((here,), (rows,))
        return
    start = 0
    for part in piece.parts:
        if piece.dim == 0:
            first, last = max(start, rows.start), min(start + len(part), rows.stop)
            if first < last:
                shift = part.start - start
                yield Chunk((slice(first - rows.start, last - rows.start),), (slice(first + shift, last + shift),))
        else:
            between = (slice(None),) * (piece.dim - 1)
            columns = slice(start, start + len(part))
            yield Chunk((here, *between, columns), (rows, *between, slice(part.start, part.stop)))
        start += len(part)
    assert start == parameter.shape[piece.dim], "the piece is what the parameter holds"


def whole_tensor(held: Held, shape: torch.Size, is_counted: bool, add: Any) -> Tensor:
    """The whole parameter of ``shape``, float32, on every rank; collective.

    ``add`` sums an int32 tensor over all ranks in place. ``is_counted``: of the ranks that hold the same, one.
    """
    whole = torch.zeros(shape, dtype=torch.float32, device=held.local.device)
    for chunk in held.chunks if is_counted else ():
        whole[chunk.whole] = held.local[chunk.here].float()
    add(whole.view(torch.int32))  # bits, because -0.0 + 0.0 is another number
    return whole


def whole(parameter: Tensor) -> Tensor:
    """All rows of ``parameter``, gathered from every rank where it is sharded; then all ranks call this together."""
    rows = parameter.detach()
    return rows.full_tensor() if isinstance(rows, DTensor) else rows
