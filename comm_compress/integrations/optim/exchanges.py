"""The two ways in which real ranks bring the rows of a unit's matrices together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from comm_compress.core.compressor import Codec, Compressor
from comm_compress.core.ledger import Collective, Ledger
from comm_compress.core.rounds import Request
from comm_compress.core.segments import unflatten
from comm_compress.core.state import State
from comm_compress.core.tracing import span
from comm_compress.core.workspace import WorkspacePool
from comm_compress.drive import transport
from comm_compress.integrations.optim.gathers import OPTIMIZER, Whole, Work
from comm_compress.integrations.optim.matrices import SENT, Unit
from comm_compress.integrations.optim.owners import ROUNDS, Owned

Result = TypeVar("Result")


class _Exchange(ABC):
    """Work on one unit, whose first messages are being sent."""

    _own_rounds = 1

    def __init__(
        self,
        method: Compressor,
        ledger: Ledger,
        workspaces: WorkspacePool,
        unit: Unit,
        updates: Sequence[Tensor],
        work: Work,
        group: dist.ProcessGroup,
        state: State,
    ) -> None:
        self._method, self._ledger, self._workspaces = method, ledger, workspaces
        self._unit, self._work, self._group, self._state = unit, work, group, state
        self._updates, device = updates, updates[0].device
        with span(f"{OPTIMIZER} ({unit.name})"):
            self._collective = Collective(device)
            start = self._collective.now()
            self._workspace = workspaces.acquire(device)
            state.segments = unit.segments
            state.begin(workspace=self._workspace)
            self._collective.spent("encode", start)
            self._running = self._run(self._first())

    @abstractmethod
    def _first(self) -> Generator[Request, Any, Tensor]:
        """Return the rounds whose messages are sent at once."""

    def _run(self, rounds: Generator[Request, Any, Result]) -> transport.Running[Result]:
        return transport.Running(rounds, self._group, self._collective, self._workspace)

    def _ended(self, elements: int) -> None:
        """Give back what the exchange used, and enter it; ``elements`` would have been sent as they are."""
        self._state.end()
        self._workspaces.release(self._workspace)
        collective, own = self._collective, self._own_rounds
        self._ledger.add(OPTIMIZER, self._unit.name, collective, elements, SENT.itemsize, None, own)


class ByAllGather(_Exchange):
    """Everyone has all rows, and does all of the work."""

    def _first(self) -> Generator[Request, Any, Tensor]:
        width = self._unit.width
        row = self._workspace.take("row", (width,), SENT, self._updates[0].device)
        return self._method.all_gather(self._unit.row(self._updates, row), self._state)

    def finish(self) -> list[list[Tensor]]:
        """Wait for the other ranks' rows, then do the work; this rank's rows of what was made."""
        with span(f"{OPTIMIZER} ({self._unit.name})"):
            rows = self._running.result()
            start = self._collective.now()
            # new memory for each: that of the rows is the next gather's
            whole = [part.to(SENT, copy=True) for part in unflatten(rows, self._unit.segments)]
            self._collective.spent("decode", start)
            self._ended(self._unit.width * (self._group.size() - 1))
        return Whole(self._unit, whole, self._work).finish()


class ByOwners(_Exchange):
    """Each rank does the work on the matrices that it owns, and sends the others their rows of it."""

    _own_rounds = ROUNDS

    def _first(self) -> Generator[Request, Any, Tensor]:
        self._owned = Owned.of(self._unit)
        return self._owned.there(self._updates, self._codec, self._state)

    @property
    def _codec(self) -> Codec:
        assert isinstance(self._method, Codec), "looked at before"
        return self._method

    def finish(self) -> list[list[Tensor]]:
        """Wait for the rows of this rank's matrices, do the work on them, and exchange what was made."""
        rank, owned = self._group.rank(), self._owned
        with span(f"{OPTIMIZER} ({self._unit.name})"):
            rows = self._running.result()
        made = owned.made(rows, rank, self._work)
        with span(f"{OPTIMIZER} ({self._unit.name})"):
            mine = self._run(owned.back(made, rank, self._codec, self._state)).result()
            self._ended(owned.elements(rank))
        return [mine]
