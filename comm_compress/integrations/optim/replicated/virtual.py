"""Optimizers that communicate, of many replicas in one process: the numbers and bytes of real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from comm_compress.core import nonfinite
from comm_compress.core.ledger import Collective, Ledger
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.integrations.handle import load, save
from comm_compress.integrations.optim.gathers import OPTIMIZER
from comm_compress.integrations.optim.replicated.exchange import (
    ROUNDS,
    Rounds,
    elements_of_all_reduce,
    kept,
    layout,
    rows_of,
)
from comm_compress.integrations.replicas.fragments import Fragment, Named, divide, trainable


class VirtualReplicas:
    """``world`` replicas of a plain module, whose weights are one, and whose gradients are collected one by one.

        replicas = cc.optim.VirtualReplicas(model, 8)
        optimizer = cc.optim.DeMo(replicas, lr=1e-3)
        for step in range(steps):
            for rank in range(8):
                loss_of(model, batches[step][rank]).backward()
                replicas.collect(rank)                          # these gradients are rank's
            optimizer.step(); optimizer.zero_grad()

    Numbers, states and bytes are those of the real replicas of `between`, bit for bit; above two, where the network
    itself adds up floats (Dion), to its order of sums. Memory: the weights once, gradients and states of every replica.
    Times in ledgers are zero. Raises ValueError as `between` does.
    """

    def __init__(self, model: Named, world: int, *, units: int | Sequence[Sequence[str]] = 1, seed: int = 0) -> None:
        if world < 1:
            raise ValueError(f"world = {world}: must be 1 or more")
        self.world = world
        """How many replicas there are."""
        parts = divide(trainable(model if isinstance(model, nn.Module) else list(model)), units, "units")
        self.units = [part._replace(name=f"replicas{i}") for i, part in enumerate(parts)]
        """All parameters, by the units that are exchanged at once."""
        self.ledgers = [Ledger() for _ in range(world)]
        """Each replica's ledger."""
        self._seed, self._parts = seed, 1
        self._by_unit: dict[str, list[State]] = {}
        self._collected: list[dict[str, Tensor]] = [{} for _ in range(world)]

    @property
    def ledger(self) -> Ledger:
        """The ledger of replica 0."""
        return self.ledgers[0]

    @property
    def state_bytes(self) -> int:
        """The bytes that states hold for one replica, the mean over replicas."""
        return round(sum(s.num_bytes for states in self._by_unit.values() for s in states) / self.world)

    def collect(self, rank: int) -> None:
        """Take the gradients that ``backward`` left: they are ``rank``'s. Taken twice in a step, they add up."""
        mine = self._collected[rank]
        for unit in self.units:
            for name, p in unit.parameters.items():
                if p.grad is not None:
                    mine[name] = mine[name] + p.grad if name in mine else p.grad
                    p.grad = None

    def lay_out(self, divided: bool) -> None:
        """See `Replicas.lay_out`: the optimizer calls it when it is made."""
        if self._by_unit:
            raise ValueError("replicas: have an optimizer already; each needs replicas of its own")
        self._parts = self.world if divided else 1
        for unit in self.units:
            segments = layout(unit.local(), self._parts)
            self._by_unit[unit.name] = [
                State(unit.name, rank, self.world, self._seed, segments, lasting=False, parts=self._parts)
                for rank in range(self.world)
            ]

    def gradients(self, unit: Fragment) -> list[dict[str, Tensor]]:
        """Return every replica's gradients by name. ValueError when they are not of the same parameters."""
        found = [{n: mine[n].detach() for n in unit.parameters if n in mine} for mine in self._collected]
        if differing := {n for mine in found for n in mine.keys() ^ found[0].keys()}:
            raise ValueError(f"{min(differing)}: some replicas have a gradient, others none; let all have one, or none")
        return found

    def begin(self, unit: Fragment, tensors: Sequence[Mapping[str, Tensor]], rounds: Rounds) -> Done:
        """Exchange every replica's ``tensors``."""
        states, running = self._by_unit[unit.name], []
        for mine, state in zip(tensors, states, strict=True):
            state.segments = layout(mine, self._parts)
            rows = rows_of(mine, self._parts)
            state.begin(nonfinite.mark(rows))
            running.append(rounds(rows, state))
        outcome = simulate.lockstep(running)
        elements = elements_of_all_reduce(tensors[0], self.world)
        for sent, state, ledger in zip(outcome.sent, states, self.ledgers, strict=True):
            collective = Collective(torch.device("cpu"), sent, outcome.rounds)
            ledger.add(OPTIMIZER, unit.name, collective, elements, 4, state.finite, ROUNDS)
        return Done(kept(outcome.results[0]))

    def void(self) -> None:
        """Take back what the exchanges of the step under way did to all states."""
        for states in self._by_unit.values():
            for state in states:
                state.rollback()

    def zero_grad(self) -> None:
        """Forget the gradients that were collected."""
        self._collected = [{} for _ in range(self.world)]

    def state_dicts(self) -> list[dict[str, Any]]:
        """Return what each replica's ``Handle.state_dict()`` would be: real ranks can go on with it."""
        return [{key: save(state) for key, state in of_rank.items()} for of_rank in self._by_rank()]

    def load_state_dicts(self, states: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
        """Put back what `state_dicts`, or as many real replicas, gave. ValueError when anything differs."""
        if len(states) != self.world:
            raise ValueError(f"optimizer states of {len(states)} replicas do not fit {self.world} virtual ones")
        for saved, of_rank in zip(states, self._by_rank(), strict=True):
            load(saved, of_rank)

    def _by_rank(self) -> list[dict[str, State]]:
        return [
            {f"{OPTIMIZER}/{name}": states[rank] for name, states in self._by_unit.items()}
            for rank in range(self.world)
        ]


class Done:
    """An exchange that is over."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def finish(self) -> Any:
        """Return what its rounds returned."""
        return self._made
