"""What carries one place's tensors in one direction: activations, or their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.distributed as dist
from torch import Tensor

from comm_compress.core.compressor import Codec, Compressor
from comm_compress.core.ledger import Collective, Ledger, Op
from comm_compress.core.state import State
from comm_compress.core.tracing import span
from comm_compress.core.workspace import Workspace, WorkspacePool
from comm_compress.drive import stock, transport
from comm_compress.drive.stock_counts import StockCounts
from comm_compress.integrations.optimizer_steps import OptimizerSteps
from comm_compress.integrations.parallel.places import collectives
from comm_compress.integrations.parallel.places.sample_memory import ChangesBySample, SampleMemory

Sizes = Sequence[int] | None


class Direction:
    """Runs a place's collectives in one direction by one method; None: by torch's own, with nothing around them.

    ``state``: the method's private random numbers, a function of the operation, the place's name and how many
    collectives it ran; and what is remembered of each sample, where there is a ``memory``. Nothing else is.
    ``by_sample``: what carries messages between stages by changes of their samples; None without a ``memory``, and with
    a method that loses nothing, whose activations are sent as they are.
    ``exact``: by torch's own for now (`Activations.exact`). ``counts``: enters what torch's own send in the ledger.
    """

    def __init__(
        self,
        op: Op,
        place: str,
        group: dist.ProcessGroup,
        method: Compressor | None,
        seed: int,
        ledger: Ledger,
        workspaces: WorkspacePool,
        steps: OptimizerSteps,
        memory: SampleMemory | None = None,
        counts_stock: bool = False,
    ) -> None:
        self.op, self.place, self.group, self.method = op, place, group, method
        self.ledger, self.workspaces = ledger, workspaces
        self.state = State(f"{op}/{place}", group.rank(), group.size(), seed, lasting=False)
        self.by_sample: ChangesBySample | None = None
        if memory is not None and isinstance(method, Codec) and not method.traits.lossless:
            self.by_sample = ChangesBySample(method, memory, self.state)
        self.exact = False
        counts = counts_stock and method is None
        self.counts = StockCounts(ledger, op, place, group.rank(), group.size()) if counts else None
        self._steps, self._step = steps, -1

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of ``x`` over the ranks: the same bits on all of them."""
        if self.method is None or self.exact:
            run = partial(stock.all_reduce, x, self.group)
            return run() if self.counts is None or self.exact else self.counts.all_reduce(x, run)
        n = collectives.row_length(x.shape, self.state.world)
        elements = 2 * (self.state.world - 1) * n  # both halves
        return self.run(collectives.all_reduce(x, self.method, self.state), x, elements, 2)

    def all_gather(self, x: Tensor, dim: int, sizes: Sizes = None) -> Tensor:
        """Return all ranks' ``x`` joined along ``dim``: the same bits on all of them."""
        if self.method is None or self.exact:
            run = partial(stock.all_gather, x, dim, sizes, self.group)
            return run() if self.counts is None or self.exact else self.counts.all_gather(x, dim, sizes, run)
        elements = (self.state.world - 1) * x.numel()
        if sizes is not None:
            assert isinstance(self.method, Codec), "checked by the place"
            return self.run(collectives.all_gather_parts(x, dim, sizes, self.method, self.state), x, elements, 1)
        return self.run(collectives.all_gather(x, dim, self.method, self.state), x, elements, 1)

    def reduce_scatter(self, x: Tensor, dim: int, sizes: Sizes = None) -> Tensor:
        """Return this rank's part of ``dim`` of the sum of ``x`` over the ranks."""
        if self.method is None or self.exact:
            run = partial(stock.reduce_scatter, x, dim, sizes, self.group)
            return run() if self.counts is None or self.exact else self.counts.reduce_scatter(x, run)
        if sizes is not None:
            assert isinstance(self.method, Codec), "checked by the place"
            elements = x.numel() - x.numel() // max(1, sum(sizes)) * sizes[self.state.rank]
            return self.run(collectives.reduce_scatter_parts(x, dim, sizes, self.method, self.state), x, elements, 1)
        elements = x.numel() - x.numel() // self.state.world
        return self.run(collectives.reduce_scatter(x, dim, self.method, self.state), x, elements, 1)

    def run(self, rounds: collectives.Rounds, like: Tensor, elements: int, own_rounds: int) -> Tensor:
        """Drive ``rounds`` over the group, charge them to the place, and return their result.

        ``rounds`` use this direction's `state`, which is begun when they are. ``like``: has the device and dtype of
        what travels uncompressed, of which ``elements`` would be sent to other ranks, in ``own_rounds`` rounds.
        """
        with span(f"{self.op} ({self.place})"):
            collective = Collective(like.device)
            workspace = self.workspaces.acquire(like.device)
            self.begin(workspace)
            result = transport.run(rounds, self.group, collective, workspace)
            self.state.end()
            self.workspaces.release(workspace)
            self.ledger.add(self.op, self.place, collective, elements, like.itemsize, None, own_rounds)
        return result

    def begin(self, workspace: Workspace | None = None) -> None:
        """Begin the state's next collective or message: `Activations.rollback` takes back all of one optimizer step."""
        number = self._steps.number
        self.state.begin(workspace=workspace, goes_on=number == self._step)
        self._step = number
