"""What real and virtual replicas have in common: which fragment is sent when, and what is done with the mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from comm_compress.integrations.outer.optimizers import OptimizerFactory
from comm_compress.integrations.outer.schedule import Schedule
from comm_compress.integrations.outer.weights import OuterParameters
from comm_compress.integrations.replicas.fragments import Fragment

Means = list[tuple[str, Tensor]]
OUTER: Final = "outer"
"""The ledger's operation; in a state dict the key of what is no compressor's state."""


class Exchange(Protocol):
    """Pseudo-gradients of one fragment on their way between replicas."""

    def advance(self) -> None:
        """Wait for what is on its way, and send what comes next."""

    def finish(self) -> Means:
        """Return the mean of every parameter over replicas, by name: the same bits on every replica."""


class Arrived:
    """An exchange that was over as soon as it was begun."""

    def __init__(self, means: Means) -> None:
        self._means = means

    def advance(self) -> None:
        """Do nothing: no message of this exchange is on its way."""

    def finish(self) -> Means:
        """Return the mean of every parameter over replicas, by name."""
        return self._means


@dataclass
class _UnderWay:
    """A fragment that was sent and is not applied yet; ``means``: None before they are here, and when they are void."""

    due: int
    halfway: int
    exchange: Exchange | None
    means: Means | None = None


class Synchroniser(ABC):
    """Counts inner steps, and synchronises the fragments of the replicas in this process when their step has come.

    ``replicas``: the fragments of each replica that this process trains.
    """

    def __init__(self, replicas: Sequence[Sequence[Fragment]], schedule: Schedule, optimizer: OptimizerFactory) -> None:
        self.schedule = schedule
        self.outer = OuterParameters(replicas[0], optimizer)
        """The outer parameters (``values``, by name) and the outer ``optimizer``, whose learning rate may change."""
        self.finite = True
        """Was everything that the last synchronisation brought finite? The same on all replicas."""
        self._replicas, self._fragments = replicas, replicas[0]
        self._step = 0
        self._under_way: dict[int, _UnderWay] = {}

    @property
    def inner_steps(self) -> int:
        """How many inner steps `step` was told of."""
        return self._step

    @abstractmethod
    def _begin(self, number: int) -> Exchange:
        """Send the pseudo-gradients of a fragment."""

    @abstractmethod
    def _void(self, number: int) -> None:
        """Take back what the last exchange of a fragment did to the method's states."""

    def _written(self) -> None:  # noqa: B027  (most have nothing to do)
        """Note that parameters were changed: what was gathered from them is out of date."""

    def step(self) -> list[str]:
        """Note that an inner optimizer step was made, or skipped; synchronise what is due. All replicas call it alike.

        Returns the names of the fragments that were applied: empty after most steps. Where a mean is not
        finite on any replica, nothing that is kept changes (outer parameters, outer optimizer, the method's states);
        the fragment becomes NaN on all replicas, so that none goes on as if nothing had been, and `finite` is False.
        `restore` goes back to the outer parameters.
        """
        self._step += 1
        for number in self.schedule.sent_after(self._step):
            self._send(number, self._step + self.schedule.overlap, self._step + self.schedule.halfway)
        for under_way in self._under_way.values():
            if under_way.halfway == self._step < under_way.due and under_way.exchange is not None:
                under_way.exchange.advance()
        return self._apply([n for n, under_way in self._under_way.items() if under_way.due == self._step])

    def synchronise(self) -> list[str]:
        """Synchronise all fragments now, whatever the schedule says; afterwards all replicas are equal.

        What is under way is applied first. For the end of training, and before something that needs one model. All
        replicas call it. Returns the names of the fragments.
        """
        self._apply(list(self._under_way), mixing=0.0)
        finite = self.finite
        for number in range(len(self._fragments)):
            self._send(number, self._step, self._step)
        names = self._apply(list(self._under_way), mixing=0.0)
        self.finite &= finite
        return names

    @torch.no_grad()
    def restore(self) -> None:
        """Give every replica the outer parameters again; what it has learnt since is lost. All replicas call it."""
        for replica in self._replicas:
            for fragment in replica:
                self.outer.put(fragment)
        self._written()

    @contextmanager
    def outer_parameters(self) -> Iterator[None]:
        """Inside, replicas have the outer parameters: for evaluation of the one model that they train together."""
        own = [[{n: t.clone() for n, t in f.local().items()} for f in replica] for replica in self._replicas]
        self.restore()
        try:
            yield
        finally:
            for replica, saved in zip(self._replicas, own, strict=True):
                for fragment, tensors in zip(replica, saved, strict=True):
                    for name, now in fragment.local().items():
                        now.copy_(tensors[name])
            self._written()

    def _send(self, number: int, due: int, halfway: int) -> None:
        self._under_way[number] = _UnderWay(due, halfway, self._begin(number))

    def _arrive(self, number: int) -> _UnderWay:
        """Wait for a fragment's means. What is not finite is void: its states are taken back, no means are kept."""
        under_way = self._under_way[number]
        if under_way.exchange is not None:
            means = under_way.exchange.finish()
            under_way.exchange = None
            if bool(torch.stack([torch.isfinite(mean).all() for _, mean in means]).all()):
                under_way.means = means
            else:
                self._void(number)
        return under_way

    @torch.no_grad()
    def _apply(self, numbers: Sequence[int], mixing: float | None = None) -> list[str]:
        if not numbers:
            return []
        self.finite = True
        for number in numbers:
            means = self._arrive(number).means
            del self._under_way[number]
            if means is not None:
                self.outer.step(means)
            for replica in self._replicas:
                if means is not None:
                    self.outer.put(replica[number], self.schedule.mixing if mixing is None else mixing)
                else:
                    for now in replica[number].local().values():
                        now.fill_(torch.nan)
            self.finite &= means is not None
        self._written()
        return [self._fragments[number].name for number in numbers]

    def _saved(self, rank: int, world: int) -> dict[str, Any]:
        """Return all that is kept beside the compressor's states; what is under way is waited for."""
        arrived = {
            self._fragments[n].name: {"due": u.due, "means": None if u.means is None else dict(u.means)}
            for n, u in [(n, self._arrive(n)) for n in self._under_way]
        }
        return {"world": world, "rank": rank, "step": self._step, "arrived": arrived, **self.outer.state_dict()}

    def _check(self, saved: Mapping[str, Any], rank: int, world: int) -> None:
        """ValueError when ``saved`` is of another rank, of another number of replicas or of other fragments."""
        if (saved["rank"], saved["world"]) != (rank, world):
            raise ValueError(
                f"outer state is of replica {saved['rank']} of {saved['world']}, this is {rank} of {world}"
                + (
                    f"; pass all states through comm_compress.reshard(states, {world}) first"
                    * (saved["world"] != world)
                )
            )
        self.outer.check(saved)
        if unknown := saved["arrived"].keys() - {fragment.name for fragment in self._fragments}:
            raise ValueError(f"outer state is of other fragments: {', '.join(sorted(unknown))} was under way")

    def _load(self, saved: Mapping[str, Any]) -> None:
        self._step = int(saved["step"])
        self.outer.load_state_dict(saved)
        self._under_way.clear()
        for number, fragment in enumerate(self._fragments):
            if fragment.name in saved["arrived"]:
                entry = saved["arrived"][fragment.name]
                means = None if entry["means"] is None else [(n, t.clone()) for n, t in entry["means"].items()]
                self._under_way[number] = _UnderWay(entry["due"], entry["due"], None, means)
