"""Gradients of parameters that several ranks hold whole, though each sees but a part of what they act on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from comm_compress.core.segments import segments_of
from comm_compress.core.state import State
from comm_compress.drive import stock
from comm_compress.drive.stock_counts import StockCounts
from comm_compress.integrations import allreduce
from comm_compress.integrations.allreduce import GradientAllReduce
from comm_compress.integrations.handle import BaseHandle
from comm_compress.registry import AnyMethod, chosen


class ReplicatedGradients(BaseHandle):
    """Sums the gradients of replicated parameters over a group, unit by unit, when `reduce` is called after backward.

    In sequence parallelism every rank has all weights and some positions, so a gradient is a sum over ranks (norms,
    biases, in some layouts whole layers). ``units``: named parameters by unit (a block, say); each unit is one
    all-reduce. ``mean``: divide the sums by the number of ranks (data-parallel replicas). ``method`` carries them as in
    `comm_compress.ddp`, ``all_gather`` its second half (default: exactly).
    None: torch's own all-reduce, and the ledger names it as uncounted, unless ``count_stock`` has it entered with bytes
    computed from its shape. Parameters that FSDP2 shards are summed shard by shard. Raises ValueError for methods that
    cannot make an all-reduce.
    """

    def __init__(
        self,
        units: Mapping[str, Iterable[tuple[str, nn.Parameter]]],
        group: dist.ProcessGroup,
        method: AnyMethod | None = None,
        all_gather: AnyMethod | None = None,
        *,
        seed: int = 0,
        mean: bool = False,
        count_stock: bool = False,
    ) -> None:
        super().__init__()
        self.method, gather = chosen("method", method), chosen("all_gather", all_gather)
        self._divisor = dist.get_world_size(group) if mean else 1
        self.units = {unit: list(parameters) for unit, parameters in units.items()}
        self._group = group
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        self._reductions: dict[str, GradientAllReduce] = {}
        if self.method is None:
            self.ledger.uncounted = () if count_stock else ("all_reduce",)
            counted = self.units if count_stock else ()
            self._counts = {unit: StockCounts(self.ledger, "all_reduce", unit, rank, world) for unit in counted}
            return
        allreduce.check("method", self.method, gather, world)
        for unit, parameters in self.units.items():
            layout = segments_of([(name, tuple(_local(p).shape) or (1,)) for name, p in parameters], world)
            state = State(unit, rank, world, seed, layout, lasting=False)
            self._reductions[unit] = GradientAllReduce(
                state, self.method, gather, self.ledger, self.workspaces, self._scale
            )

    def reduce(self) -> None:
        """Replace every gradient by its sum (or mean) over the group. All ranks call it once an optimizer step.

        Parameters without a gradient take no part; it must be the same ones on every rank.
        """
        if dist.get_world_size(self._group) == 1:
            return
        for unit, parameters in self.units.items():
            named = [(name, _local(p.grad)) for name, p in parameters if p.grad is not None]
            if not named:
                continue
            if self.method is None:
                _sum(named, self._group, self._divisor, self._counts.get(unit))
            else:
                self._reductions[unit](named, unit, self._group, self._divisor)

    def _states(self) -> dict[str, State]:
        return {f"all_reduce/{unit}": reduction.state for unit, reduction in self._reductions.items()}


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _sum(named: list[tuple[str, Tensor]], group: dist.ProcessGroup, divisor: int, counts: StockCounts | None) -> None:
    """One all-reduce of torch's own for all gradients of one dtype."""
    for dtype in dict.fromkeys(gradient.dtype for _, gradient in named):
        gradients = [gradient for _, gradient in named if gradient.dtype == dtype]
        together = torch.cat([gradient.reshape(-1) for gradient in gradients])
        run = partial(stock.all_reduce, together, group)
        total = run() if counts is None else counts.all_reduce(together, run)
        if divisor > 1:
            total.div_(divisor)
        for gradient, summed in zip(gradients, torch.split(total, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))
