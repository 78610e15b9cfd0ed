"""What `Communication` asks of the handle that a model's `attach` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import comm_compress as cc


class Counted(Protocol):
    """What sends bytes of its own, and perhaps remembers something."""

    @property
    def ledger(self) -> cc.Ledger:
        """What was sent, of the first rank that this process is."""

    @property
    def ledgers(self) -> Sequence[cc.Ledger]:
        """What each rank that this process is has sent."""

    @property
    def state_bytes(self) -> int:
        """The bytes that residuals and other states hold."""

    def state_dicts(self) -> list[dict[str, Any]]:
        """The states of each rank that this process is."""

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Put back what `state_dicts` gave, a mapping for each rank."""


class Attached(Counted, Protocol):
    """`cc.Handle`, `cc.VirtualRanks`, or several handles as one."""

    def compare(self) -> cc.Comparisons:
        """Compare each reduced gradient with the exact one, from now on."""

    def rollback(self) -> None:
        """Take back what the optimizer step under way did to every state."""

    def exact(self) -> AbstractContextManager[None]:
        """Inside, nothing is compressed or counted."""


class Gathers(Counted, cc.optim.Gathers, Protocol):
    """`cc.optim.Handle` or `cc.optim.VirtualHandle`: what brings whole matrices to the optimizer."""


class Replicas(Counted, cc.optim.Replicas, Protocol):
    """`cc.optim.between`'s handle or `cc.optim.VirtualReplicas`: what replicas exchange in place of gradients."""


class Together:
    """What the model's handle and the optimizer's have sent and remember, of each rank that this process is."""

    def __init__(self, attached: Attached, exchanges: Counted) -> None:
        self._parts: tuple[Counted, Counted] = (attached, exchanges)
        named = zip(attached.ledgers, exchanges.ledgers, strict=True)
        self.ledgers = [cc.parallel.JoinedLedger({"model": one, "optimizer": other}) for one, other in named]

    @property
    def ledger(self) -> cc.Ledger:
        """What was sent, of the first rank that this process is."""
        return self.ledgers[0]

    @property
    def state_bytes(self) -> int:
        """How many bytes the states of all parts hold."""
        return sum(part.state_bytes for part in self._parts)

    def state_dicts(self) -> list[dict[str, Any]]:
        """The states of each rank that this process is: their keys begin with the operation, so none is in both."""
        by_rank = zip(*(part.state_dicts() for part in self._parts), strict=True)
        return [{**model, **optimizer} for model, optimizer in by_rank]

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Give each part its own of what `state_dicts` gave."""
        for part, is_mine in zip(self._parts, (False, True), strict=True):
            own = [{k: v for k, v in one.items() if k.startswith("optimizer/") == is_mine} for one in states]
            part.load_state_dicts(own)
