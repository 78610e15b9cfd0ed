"""What `Communication` asks of the handle that a model's `attach` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import comm_compress as cc


class Attached(Protocol):
    """`cc.Handle`, `cc.VirtualRanks`, or several handles as one."""

    @property
    def ledger(self) -> cc.Ledger:
        """What was sent, of the first rank that this process is."""

    @property
    def ledgers(self) -> Sequence[cc.Ledger]:
        """What each rank that this process is has sent."""

    @property
    def state_bytes(self) -> int:
        """The bytes that residuals and other states hold."""

    def compare(self) -> cc.Comparisons:
        """Compare each reduced gradient with the exact one, from now on."""

    def rollback(self) -> None:
        """Take back what the optimizer step under way did to every state."""

    def exact(self) -> AbstractContextManager[None]:
        """Inside, nothing is compressed or counted."""

    def state_dicts(self) -> list[dict[str, Any]]:
        """The states of each rank that this process is."""

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Put back what `state_dicts` gave."""
