"""Optimizers that communicate, of many replicas in one process: the numbers and bytes of real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from comm_compress.core.ledger import Collective, Ledger
from comm_compress.drive import simulate
from comm_compress.integrations.handle import load, save
from comm_compress.integrations.optim.gathers import OPTIMIZER
from comm_compress.integrations.optim.replicated.exchange import (
    ROUNDS,
    OwnWeights,
    Rounds,
    elements_of_all_reduce,
    kept,
)
from comm_compress.integrations.optim.replicated.states import States, require_first
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

    def __init__(
        self, model: Named, world: int, *, fragments: int | Sequence[Sequence[str]] = 1, seed: int = 0
    ) -> None:
        if world < 1:
            raise ValueError(f"world = {world}: must be 1 or more")
        self.world = world
        """How many replicas there are."""
        self.fragments = divide(trainable(model if isinstance(model, nn.Module) else list(model)), fragments)
        """All parameters, in parts that are exchanged at once."""
        self.ledgers = [Ledger() for _ in range(world)]
        """Each replica's ledger."""
        self._seed = seed
        self._states: list[States] = []
        self._weights: OwnWeights | None = None
        self._collected: list[dict[str, Tensor]] = [{} for _ in range(world)]

    @property
    def ledger(self) -> Ledger:
        """What replica 0 sent; every other one has a ledger in ``ledgers``."""
        return self.ledgers[0]

    @property
    def state_bytes(self) -> int:
        """The bytes that states hold for one replica, the mean over replicas."""
        return round(sum(state.num_bytes for mine in self._states for state in mine.named().values()) / self.world)

    def collect(self, rank: int, dtype: torch.dtype | None = None) -> None:
        """Take the gradients that ``backward`` left: they are ``rank``'s. Taken twice in a step, they add up.

        ``dtype``: what they are kept and added up in; None: what they are.
        """
        mine = self._collected[rank]
        for fragment in self.fragments:
            for name, p in fragment.parameters.items():
                if p.grad is not None:
                    gradient = p.grad if dtype is None else p.grad.to(dtype)
                    mine[name] = mine[name] + gradient if name in mine else gradient
                    p.grad = None

    def lay_out(self, divided: bool, own_weights: OwnWeights | None = None) -> None:
        """See `Replicas.lay_out`: the optimizer calls it when it is made."""
        require_first(self._states)
        self._weights = own_weights
        self._states = [States(self.fragments, rank, self.world, self._seed, divided) for rank in range(self.world)]

    def remembered(self, fragment: Fragment, name: str) -> list[dict[str, Tensor]]:
        """Return what every replica's states remember under ``name``, by parameter."""
        return [mine.remembered(fragment, name) for mine in self._states]

    def own_weights(self, rank: int = 0) -> AbstractContextManager[None]:
        """Inside, the weights are those that replica ``rank`` computes its gradients with (`Replicas.own_weights`)."""
        return nullcontext() if self._weights is None else self._weights(rank)

    def gradients(self, fragment: Fragment) -> list[dict[str, Tensor]]:
        """Return every replica's gradients by name. ValueError when they are not of the same parameters."""
        by_replica = [{n: mine[n].detach() for n in fragment.parameters if n in mine} for mine in self._collected]
        if differing := {n for mine in by_replica for n in mine.keys() ^ by_replica[0].keys()}:
            raise ValueError(f"{min(differing)}: some replicas have a gradient, others none; let all have one, or none")
        return by_replica

    def begin(self, fragment: Fragment, tensors: Sequence[Mapping[str, Tensor]], rounds: Rounds) -> Done:
        """Exchange ``tensors`` of a fragment, by parameter and of every replica: all of it, at once."""
        begun = [mine.begin(fragment, of_replica) for mine, of_replica in zip(self._states, tensors, strict=True)]
        outcome = simulate.lockstep([rounds(rows, state) for rows, state in begun])
        elements = elements_of_all_reduce(tensors[0], self.world)
        for sent, (_, state), ledger in zip(outcome.sent, begun, self.ledgers, strict=True):
            collective = Collective(torch.device("cpu"), sent, outcome.rounds)
            ledger.add(OPTIMIZER, fragment.name, collective, elements, 4, state.finite, ROUNDS)
        return Done(kept(outcome.results[0]))

    def void(self) -> None:
        """Take back what the exchanges of the step under way did to all states."""
        for mine in self._states:
            mine.void()

    def zero_grad(self) -> None:
        """Forget the gradients that were collected."""
        self._collected = [{} for _ in range(self.world)]

    def state_dicts(self) -> list[dict[str, Any]]:
        """Return what each replica's ``Handle.state_dict()`` would be: real ranks can go on with it."""
        return [{key: save(state) for key, state in mine.named().items()} for mine in self._states]

    def load_state_dicts(self, states: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
        """Put back what `state_dicts`, or as many real replicas, gave. ValueError when anything differs."""
        if len(states) != self.world:
            raise ValueError(f"optimizer states of {len(states)} replicas do not fit {self.world} virtual ones")
        if not self._states:
            raise ValueError("replicas: these states are of an optimizer; make it, then load them")
        for saved, mine in zip(states, self._states, strict=True):
            load(saved, mine.named())


class Done:
    """An exchange among virtual replicas: over as soon as it is begun."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def finish(self) -> Any:
        """Return what the rounds of the exchange returned."""
        return self._made
