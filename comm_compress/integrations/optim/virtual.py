"""Whole matrices for the optimizer of many ranks in one process: the numbers and bytes of real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from comm_compress.core.ledger import Collective, Ledger
from comm_compress.core.segments import unflatten
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.integrations import allreduce
from comm_compress.integrations.handle import load, save
from comm_compress.integrations.optim.gathers import OPTIMIZER, UnderWay, Whole, Work, built
from comm_compress.integrations.optim.matrices import SENT, Unit, check_units, matrix_of_shards
from comm_compress.registry import AnyMethod


class VirtualHandle:
    """The `attach` of ``world`` ranks that one process plays, each with its rows of every matrix as a parameter.

    ``units``: by unit and name the ranks' shards in their order, as `torch.Tensor` rows of FSDP2 (views of one whole
    parameter, say). Matrices, random numbers, states and bytes are those of real ranks, bit for bit; times are zero.
    Raises ValueError as `attach` does.
    """

    def __init__(
        self,
        units: Mapping[str, Mapping[str, Sequence[nn.Parameter]]],
        method: AnyMethod | None = None,
        *,
        seed: int = 0,
    ) -> None:
        check_units(units)
        counts = {len(shards) for held in units.values() for shards in held.values()}
        if len(counts) != 1:
            raise ValueError(f"units: matrices have shards of {sorted(counts)} ranks; give those of as many everywhere")
        (self.world,) = counts
        self._method = built(method)
        allreduce.check_ranks(self._method, self.world)
        self.units = [
            Unit(name, tuple(matrix_of_shards(n, shards) for n, shards in held.items()), self.world)
            for name, held in units.items()
        ]
        """All matrices, by the units that they are gathered in."""
        self._method.check_names([matrix.name for unit in self.units for matrix in unit.matrices])
        self.ledgers = [Ledger() for _ in range(self.world)]
        """Each rank's ledger."""
        self._states = {
            unit.name: [State(unit.name, rank, self.world, seed, unit.segments) for rank in range(self.world)]
            for unit in self.units
        }

    @property
    def ledger(self) -> Ledger:
        """The ledger of rank 0."""
        return self.ledgers[0]

    @property
    def sends(self) -> bool:
        """Is there more than one rank, so that there is something to gather?"""
        return self.world > 1

    @property
    def state_bytes(self) -> int:
        """The bytes that states hold for one rank, the mean over ranks."""
        return round(sum(state.num_bytes for states in self._states.values() for state in states) / self.world)

    def begin(self, unit: Unit, updates: Sequence[Sequence[Tensor]], work: Work) -> UnderWay:
        """Gather ``unit``, or some matrices of it: ``updates[r][i]`` are rank r's rows of matrix i."""
        if not self.sends:
            return Whole(unit, updates[0], work)
        states = self._states[unit.name]
        rows = [unit.row(mine, torch.empty(unit.width, dtype=SENT)) for mine in updates]
        for state in states:
            state.segments = unit.segments
            state.begin()
        outcome = simulate.lockstep(
            [self._method.all_gather(row, state) for row, state in zip(rows, states, strict=True)]
        )
        for rank, ledger in enumerate(self.ledgers):
            collective = Collective(torch.device("cpu"), outcome.sent[rank], outcome.rounds)
            ledger.add(OPTIMIZER, unit.name, collective, unit.width * (self.world - 1), SENT.itemsize, None)
        return Whole(unit, [part.to(SENT) for part in unflatten(outcome.results[0], unit.segments)], work)

    def state_dicts(self) -> list[dict[str, dict[str, Any]]]:
        """Return what each rank's ``Handle.state_dict()`` would be: real ranks can go on with it."""
        return [{key: save(state) for key, state in of_rank.items()} for of_rank in self._by_rank()]

    def load_state_dicts(self, states: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
        """Put back what `state_dicts`, or as many real ranks, gave. ValueError when anything differs."""
        if len(states) != self.world:
            raise ValueError(f"optimizer states of {len(states)} ranks do not fit {self.world} virtual ranks")
        for saved, of_rank in zip(states, self._by_rank(), strict=True):
            load(saved, of_rank)

    def _by_rank(self) -> list[dict[str, State]]:
        if not self.sends:
            return [{}]
        return [
            {f"{OPTIMIZER}/{name}": states[rank] for name, states in self._states.items()} for rank in range(self.world)
        ]
