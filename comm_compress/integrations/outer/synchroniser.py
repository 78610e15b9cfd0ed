"""What real and virtual replicas have in common: which fragment is sent when, and what is done with the mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from comm_compress.integrations.outer.gradients import AddedGradients
from comm_compress.integrations.outer.optimizers import OptimizerFactory
from comm_compress.integrations.outer.schedule import Schedule
from comm_compress.integrations.outer.weights import OuterParameters
from comm_compress.integrations.replicas.fragments import Fragment

Means = list[tuple[str, Tensor]]
OUTER: Final = "outer"
"""The ledger's operation; in a state dict the key of what is no compressor's state."""
GRADIENTS: Final = "gradients"
"""The ledger's name for the part of the model that goes by its gradients."""


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

    ``replicas``: the fragments of each replica that this process trains. ``by_gradient``: of each of them the
    parameters that go by their gradients, if there are any; when they are exchanged, their number is the next one.
    """

    def __init__(
        self,
        replicas: Sequence[Sequence[Fragment]],
        schedule: Schedule,
        optimizer: OptimizerFactory,
        by_gradient: Sequence[Fragment] = (),
    ) -> None:
        if schedule.gradient_every is not None and not by_gradient:
            raise ValueError(
                f"gradient_every = {schedule.gradient_every}: nothing goes by its gradients; name it in by_gradient"
            )
        self.schedule = schedule
        self.outer = OuterParameters(replicas[0], optimizer)
        """The outer parameters (``values``, by name) and the outer ``optimizer``, whose learning rate may change."""
        self.finite = True
        """Was everything that the last synchronisation brought finite? The same on all replicas."""
        self._replicas, self._fragments = replicas, replicas[0]
        self._parts = [*replicas[0], *by_gradient[:1]]
        self._gradients = [AddedGradients(fragment) for fragment in by_gradient]
        self._has_reduced = False
        self._step = 0
        self._under_way: dict[int, _UnderWay] = {}

    @property
    def by_gradient(self) -> list[nn.Parameter]:
        """The parameters that go by their gradients, of each replica in this process."""
        return [p for added in self._gradients for p in added.fragment.parameters.values()]

    @property
    def num_parameters(self) -> int:
        """How many parameters are synchronised, in either way: of this rank's shards."""
        return sum(tensor.numel() for part in self._parts for tensor in part.local().values())

    @property
    def kept_bytes(self) -> int:
        """The bytes of the outer parameters, of what their optimizer remembers and of a replica's added gradients."""
        return self.outer.num_bytes + sum(added.num_bytes for added in self._gradients[:1])

    @property
    def inner_steps(self) -> int:
        """How many inner steps `step` was told of."""
        return self._step

    @abstractmethod
    def _begin(self, number: int, by_replica: list[Means]) -> Exchange:
        """Send what each replica in this process has of a part: pseudo-gradients, or gradients. It is used up."""

    @abstractmethod
    def _void(self, number: int) -> None:
        """Take back what the last exchange of a fragment did to the method's states."""

    def _written(self) -> None:  # noqa: B027  (most have nothing to do)
        """Note that parameters were changed: what was gathered from them is out of date."""

    def reduce_gradients(self, now: bool = False) -> bool:
        """Before each inner optimizer step: take the gradients of what goes ``by_gradient``, and leave none.

        Every so many steps (``now``: in this one, whatever the schedule says) every replica's optimizer finds the mean
        over replicas and over the steps since the last mean, the same bits on all, so its own step keeps them equal.
        Call it after clipping; all replicas call it alike. Without ``by_gradient`` it does nothing. Returns False where
        the mean is not finite on any replica: then there is none, it is not made up for, and nothing that is kept has
        changed.
        """
        if not self._gradients:
            return True
        for added in self._gradients:
            added.take()
        self._has_reduced = True
        if not now and not self.schedule.exchanges_gradients(self._step + 1):
            return True
        number = len(self._fragments)
        means = self._begin(number, [added.means() for added in self._gradients]).finish()
        if not _are_finite(means):
            self._void(number)
            return False
        for added in self._gradients:
            added.give(means)
        return True

    def step(self, taken: bool = True) -> list[str]:
        """Note that an inner optimizer step was made, or skipped; synchronise what is due. All replicas call it alike.

        ``taken``: False where all replicas have skipped the step and have not called `reduce_gradients` for it.

        Returns the names of the fragments that were applied: empty after most steps. Where a mean is not
        finite on any replica, nothing that is kept changes (outer parameters, outer optimizer, the method's states);
        the fragment becomes NaN on all replicas, so that none goes on as if nothing had been, and `finite` is False.
        `restore` goes back to the outer parameters. RuntimeError when ``by_gradient`` names parameters whose gradients
        were not reduced before the inner step: replicas would no longer agree on them.
        """
        if self._gradients and taken and not self._has_reduced:
            raise RuntimeError(
                "outer: by_gradient needs handle.reduce_gradients() before each optimizer step, and it was not called; "
                "where all replicas skipped the step, say handle.step(taken=False)"
            )
        self._has_reduced = False
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
        pseudo_gradients = [self.outer.pseudo_gradient(replica[number]) for replica in self._replicas]
        self._under_way[number] = _UnderWay(due, halfway, self._begin(number, pseudo_gradients))

    def _arrive(self, number: int) -> _UnderWay:
        """Wait for a fragment's means. What is not finite is void: its states are taken back, no means are kept."""
        under_way = self._under_way[number]
        if under_way.exchange is not None:
            means = under_way.exchange.finish()
            under_way.exchange = None
            if _are_finite(means):
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
        place = {"world": world, "rank": rank, "step": self._step, "arrived": arrived}
        saved = {**place, **self.outer.state_dict()}
        if self._gradients:  # a process has those of its own replica, or of all
            saved[GRADIENTS] = self._gradients[rank % len(self._gradients)].state_dict()
        return saved

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
        if self._gradients:
            self._gradients[0].check(saved.get(GRADIENTS))
        if unknown := saved["arrived"].keys() - {fragment.name for fragment in self._fragments}:
            raise ValueError(f"outer state is of other fragments: {', '.join(sorted(unknown))} was under way")

    def _load(self, by_replica: Sequence[Mapping[str, Any]]) -> None:
        """Put back what `_saved` gave of each replica in this process; but for their gradients all have the same."""
        saved = by_replica[0]
        self._step = int(saved["step"])
        self.outer.load_state_dict(saved)
        for added, mine in zip(self._gradients, by_replica, strict=False):
            added.load_state_dict(mine[GRADIENTS])
        self._under_way.clear()
        for number, fragment in enumerate(self._fragments):
            if fragment.name in saved["arrived"]:
                entry = saved["arrived"][fragment.name]
                means = None if entry["means"] is None else [(n, t.clone()) for n, t in entry["means"].items()]
                self._under_way[number] = _UnderWay(entry["due"], entry["due"], None, means)


def _are_finite(means: Means) -> bool:
    return bool(torch.stack([torch.isfinite(mean).all() for _, mean in means]).all())
