"""FSDP2's hooks of one rank, where every other rank sends what this rank would have sent to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist

import comm_compress as cc
from comm_compress.core.rounds import Request
from comm_compress.core.state import State
from comm_compress.core.workspace import WorkspacePool
from comm_compress.drive import simulate, transport
from comm_compress.integrations.fsdp.hooks import CompressedAllGather, CompressedReduceScatter
from experiments.bench.traffic.collectives.parts import Clock
from experiments.bench.traffic.collectives.units import STEPS, Unit


class Loop:
    """A process group of which only rank 0 is there."""

    def __init__(self, world: int) -> None:
        self._world = world

    def rank(self) -> int:
        """0: this process plays the first of all ranks."""
        return 0

    def size(self) -> int:
        """How many ranks there would be."""
        return self._world


@contextlib.contextmanager
def looped(clock: Clock) -> Iterator[None]:
    """Inside, the transport answers each request as if all ranks had made it; on ``clock`` that is ``transport``."""

    class Echo(transport.Running[Any]):
        def _post(self, request: Request) -> Callable[[], Any]:
            rank, world = self._group.rank(), self._group.size()
            return lambda: clock.timed("transport", simulate.echo, request, rank, world)

    with mock.patch.object(transport, "Running", Echo):
        yield


class Call(NamedTuple):
    """One collective: ``prepare`` puts the input where FSDP2 would have put it, ``run`` is what the hook does."""

    name: str
    prepare: Callable[[], object]
    run: Callable[[], object]


class Traffic:
    """One unit's collectives of some steps by two methods, as `attach` would run them; None: a direction left out.

    ``pool``: the workspaces that all units of a model share.
    """

    def __init__(
        self,
        unit: Unit,
        world: int,
        gradients: cc.Compressor | None,
        parameters: cc.Compressor | None,
        pool: WorkspacePool,
    ) -> None:
        self.unit, self.ledger, self._group, self._step = unit, cc.Ledger(), Loop(world), 0
        self._copied, self._copy = torch.ones(2, world * unit.n)
        self._reduce = self._gather = None
        if gradients is not None:
            state = State(unit.name, 0, world, segments=unit.segments, lasting=False)
            self._reduce = CompressedReduceScatter(state, gradients, self.ledger, pool)
            self._gradients = unit.gradients(world)
            self._rows, self._reduced = torch.empty(world * unit.n), torch.empty(unit.n)
        if parameters is not None:
            state = State(unit.name, 0, world, segments=unit.segments)
            self._gather = CompressedAllGather(state, parameters, self.ledger, pool)
            self._parameters, self._gathered = unit.parameters(), torch.empty(world, unit.n)

    @property
    def elements(self) -> int:
        """How many elements the rows of all ranks have together."""
        return int(self._copy.numel())

    def step(self) -> list[Call]:
        """The next step's collectives, in the order in which they are to be run."""
        number, self._step = self._step, self._step + 1
        calls, group = list[Call](), self._as_group()
        if (gather := self._gather) is not None:
            shard, own, whole = self._parameters[number % STEPS], self._gathered[0], self._gathered.view(-1)
            for name in ("all_gather", "all_gather again")[: self.unit.gathers]:
                calls.append(Call(name, lambda: own.copy_(shard), lambda: gather(whole, own, group)))
        if (reduce := self._reduce) is not None:
            rows, gradients = self._rows, self._gradients[number % STEPS].view(-1)
            run = lambda: reduce(self._reduced, rows, group, dist.ReduceOp.SUM)  # noqa: E731
            calls.append(Call("reduce_scatter", lambda: rows.copy_(gradients), run))
        return calls

    def copy(self) -> None:
        """The yardstick: a plain copy of as many bytes as all ranks' rows have."""
        self._copy.copy_(self._copied)

    def _as_group(self) -> Any:
        return self._group
