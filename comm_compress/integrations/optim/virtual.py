"""Whole matrices for the optimizer of many ranks in one process: the numbers and bytes of real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import ByteCount
from comm_compress.core.ledger import Collective, Ledger
from comm_compress.core.segments import unflatten
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.integrations import allreduce
from comm_compress.integrations.handle import load, save
from comm_compress.integrations.optim.gathers import OPTIMIZER, UnderWay, Whole, Work, built
from comm_compress.integrations.optim.matrices import SENT, Unit, check_units, matrix_of_shards
from comm_compress.integrations.optim.owners import How, Owned, check_how, is_by_owners
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
        exchange: How = "auto",
        seed: int = 0,
    ) -> None:
        check_units(units)
        counts = {len(shards) for held in units.values() for shards in held.values()}
        if len(counts) != 1:
            raise ValueError(f"units: matrices have shards of {sorted(counts)} ranks; give those of as many everywhere")
        (self.world,) = counts
        self._method, self._exchange = built(method), exchange
        check_how(exchange, self._method)
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
        """What rank 0 sent; every other rank has a ledger in ``ledgers``."""
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
        for state in states:
            state.segments = unit.segments
            state.begin()
        if is_by_owners(self._exchange, self._method, self.world):
            return _Done(self._by_owners(unit, updates, work, states))
        rows = [unit.row(mine, torch.empty(unit.width, dtype=SENT, device=mine[0].device)) for mine in updates]
        outcome = simulate.lockstep(
            [self._method.all_gather(row, state) for row, state in zip(rows, states, strict=True)]
        )
        self._enter(unit, [outcome], [unit.width * (self.world - 1)] * self.world)
        return Whole(unit, [part.to(SENT) for part in unflatten(outcome.results[0], unit.segments)], work)

    def _by_owners(
        self, unit: Unit, updates: Sequence[Sequence[Tensor]], work: Work, states: Sequence[State]
    ) -> list[list[Tensor]]:
        """Exchange with the owners of matrices, who work on them; each rank's rows of what was made."""
        codec, owned = self._method, Owned.of(unit)
        assert isinstance(codec, Codec), "looked at before"
        there = simulate.lockstep([owned.there(u, codec, s) for u, s in zip(updates, states, strict=True)])
        made = [owned.made(rows, rank, work) for rank, rows in enumerate(there.results)]
        back = simulate.lockstep([owned.back(m, r, codec, states[r]) for r, m in enumerate(made)])
        self._enter(unit, [there, back], [owned.elements(rank) for rank in range(self.world)])
        return list(back.results)

    def _enter(self, unit: Unit, outcomes: Sequence[simulate.Outcome], elements: Sequence[int]) -> None:
        """Enter what each rank sent, and how many ``elements`` it would have sent as they are."""
        for rank, ledger in enumerate(self.ledgers):
            sent = sum((outcome.sent[rank] for outcome in outcomes), ByteCount())
            rounds = sum(outcome.rounds for outcome in outcomes)
            collective = Collective(torch.device("cpu"), sent, rounds)
            ledger.add(OPTIMIZER, unit.name, collective, elements[rank], SENT.itemsize, None, len(outcomes))

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


class _Done:
    """Work that was done when it was begun."""

    def __init__(self, by_rank: list[list[Tensor]]) -> None:
        self._by_rank = by_rank

    def finish(self) -> list[list[Tensor]]:
        """Return each rank's rows of what was made."""
        return self._by_rank
