"""Whole matrices for the optimizer of real ranks: `attach` and the handle it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from comm_compress.core.segments import rows_of_rank
from comm_compress.core.state import State
from comm_compress.integrations import allreduce
from comm_compress.integrations.handle import BaseHandle
from comm_compress.integrations.optim.exchanges import ByAllGather, ByOwners
from comm_compress.integrations.optim.gathers import OPTIMIZER, UnderWay, Whole, Work, built
from comm_compress.integrations.optim.matrices import Matrix, Unit, check_units
from comm_compress.integrations.optim.owners import How, check_how, is_by_owners
from comm_compress.registry import AnyMethod


class Handle(BaseHandle):
    """What `attach` returns: the matrices, a ledger (operation "optimizer", by unit), and the method's states.

    A unit's collective is an all-gather of one row a rank, or two exchanges with the owners of its matrices. What the
    method remembers (`delta`) is of rows that were sent in earnest: `rollback` leaves it alone, since a step that is
    void never comes so far.
    """

    def __init__(self, places: Sequence[_Place], method: AnyMethod | None, exchange: How, seed: int) -> None:
        super().__init__()
        self._method, self._exchange = built(method), exchange
        check_how(exchange, self._method)
        self.units = [place.unit for place in places]
        """All matrices, by the units that they are gathered in."""
        self._method.check_names([matrix.name for unit in self.units for matrix in unit.matrices])
        self._places = {place.unit.name: place for place in places}
        self._by_key: dict[str, State] = {}
        for unit, group in places:
            if group is not None:
                allreduce.check_ranks(self._method, unit.world)
                state = State(unit.name, group.rank(), unit.world, seed, unit.segments)
                self._by_key[f"{OPTIMIZER}/{unit.name}"] = state

    @property
    def sends(self) -> bool:
        """Has this rank only a part of some matrix, so that there is something to gather?"""
        return bool(self._by_key)

    def _states(self) -> dict[str, State]:
        return self._by_key

    def rollback(self) -> None:
        """Do nothing: a step that is skipped has gathered nothing."""

    def begin(self, unit: Unit, updates: Sequence[Sequence[Tensor]], work: Work) -> UnderWay:
        """Begin to gather ``unit``, or some matrices of it; ``updates``: of this rank, its rows of each. Collective.

        On gloo the messages travel while the caller computes; on CUDA the gather is queued in the current stream.
        """
        (mine,) = updates
        group = self._places[unit.name].group
        if group is None:
            return Whole(unit, mine, work)
        state = self._by_key[f"{OPTIMIZER}/{unit.name}"]
        if is_by_owners(self._exchange, self._method, group.size()):
            return ByOwners(self._method, self.ledger, self.workspaces, unit, mine, work, group, state)
        return ByAllGather(self._method, self.ledger, self.workspaces, unit, mine, work, group, state)


class _Place(NamedTuple):
    """A unit, and the ranks that have rows of it; None: this one has all."""

    unit: Unit
    group: dist.ProcessGroup | None


def attach(
    units: Mapping[str, Mapping[str, nn.Parameter]],
    method: AnyMethod | None = None,
    *,
    exchange: How = "auto",
    seed: int = 0,
) -> Handle:
    """Let an optimizer have whole matrices of which each rank holds rows: explicit gathers, counted and compressed.

        handle = cc.optim.attach(cc.optim.matrices(model, ["blocks.0", "blocks.1"]), "int8")
        optimizer = cc.optim.Muon(handle, others, lr=1e-3)

    ``units``: matrices by name, by the unit in which they are gathered at once (`matrices` finds them). A parameter is
    plain (whole on this rank: nothing is sent) or a DTensor that FSDP2 has sharded over dim 0, also over one dimension
    of a mesh whose others replicate it.
    ``method``: how rows are sent, any method for parameters; None: as they are, in bfloat16, which is what
    Newton-Schulz computes in. So None changes nothing, and counts 2 bytes an element.
    ``seed``: of the method's own random numbers.

    ``exchange``: "all_gather": each rank sends its rows to all others and works on every matrix: (W - 1) / W of the
    matrices' elements a rank and step. "owners": rows go to the owner of their matrix, which alone works on it and
    sends back what it made, by the same method: 2 (W - 1) / W^2 of the elements. "auto": owners where these send fewer
    bytes (above two ranks) and the numbers are the same (a lossless method).

    Collective when the optimizer makes a step: all ranks have gradients of the same matrices. Raises ValueError for
    anything but matrices, for other ways of sharding, and for methods that do not bring every element back.
    """
    check_units(units)
    return Handle([_place(name, held) for name, held in units.items()], method, exchange, seed)


def _place(name: str, parameters: Mapping[str, nn.Parameter]) -> _Place:
    groups, matrices = [], []
    for full_name, p in parameters.items():
        group, matrix = _matrix(full_name, p)
        groups.append(group)
        matrices.append(matrix)
    if any(group is not groups[0] for group in groups):
        raise ValueError(
            f"unit {name!r}: its matrices are not sharded over the same ranks; give each kind its own unit"
        )
    return _Place(Unit(name, tuple(matrices), 1 if groups[0] is None else groups[0].size()), groups[0])


def _matrix(name: str, p: nn.Parameter) -> tuple[dist.ProcessGroup | None, Matrix]:
    """Return the ranks among which ``p`` is divided (None: this one has all of it), and which rows are here."""
    if p.ndim != 2:
        raise ValueError(f"{name}: Muon is for matrices, and this has the shape {tuple(p.shape)}")
    shape = (p.shape[0], p.shape[1])
    if not isinstance(p, DTensor):
        return None, Matrix(name, shape, (p,), (slice(0, shape[0]),))
    divided = [i for i, placement in enumerate(p.placements) if not placement.is_replicate()]
    if any(type(p.placements[i]) is not Shard or p.placements[i].dim != 0 for i in divided) or len(divided) > 1:
        raise ValueError(f"{name}: is sharded as {p.placements}; only FSDP2's shards of dim 0 can be gathered")
    mesh, rows = p.device_mesh, slice(0, shape[0])
    group = None
    if divided and mesh.size(divided[0]) > 1:
        group = mesh.get_group(divided[0])
        rows = rows_of_rank(shape[0], mesh.get_local_rank(divided[0]), group.size())
    return group, Matrix(name, shape, (p,), (rows,))
