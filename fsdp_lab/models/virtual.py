"""W ranks played by one process (--virtual_ranks): the numbers that W processes would get, without their speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import comm_compress as cc
from fsdp_lab.measure.profiling import OPS, StepCalls, StockTraffic
from fsdp_lab.models.architectures.families import blocks_of
from fsdp_lab.models.model import Model
from fsdp_lab.models.sharding import rows_of_rank
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import CommConfig

BACKEND = "gloo"
"""Whose stock collectives are counted: as CPU ranks have them."""


@dataclass
class VirtualModel(Model):
    """An unsharded model that each of W ranks computes with in turn, and `cc.VirtualRanks` between backward and step.

    What is updated are all ranks' shards, views of the exact weights: torch's kernels round a tensor's last elements
    otherwise than those before, so that updates and norms of whole parameters would differ in their last bits.
    """

    config: TrainConfig
    _ranks: cc.VirtualRanks = field(init=False)
    _reduces: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        world = self.config.run.virtual_ranks
        self._parameters = list(self.module.parameters())
        sharded = [_shards(p.detach(), world) for p in self._parameters]
        self._shards = [[nn.Parameter(shard) for shard in of_rank] for of_rank in zip(*sharded, strict=True)]
        self._updated = nn.ParameterList(shard for of_rank in self._shards for shard in of_rank)

    @property
    def updated(self) -> nn.Module:
        """Every rank's shards, one rank after the other."""
        return self._updated

    def attach(
        self, gradients: cc.Compressor | None, parameters: cc.Compressor | None, config: CommConfig, seed: int
    ) -> cc.VirtualRanks:
        """The same units under the same names as FSDP2's, so that random numbers are the same, too."""
        self._ranks = cc.VirtualRanks(
            self.module,
            self.config.run.virtual_ranks,
            [f"hf.{name}" for name in blocks_of(self.module.hf)],
            reduce_scatter=gradients,
            all_gather=parameters,
            reshard_after_forward=config.fsdp_reshard,
            seed=seed,
        )
        return self._ranks

    def stock_traffic(self) -> StockTraffic:
        """What FSDP2's own collectives would send where nothing is compressed: there is none of them to be seen."""
        elements = self._ranks.unit_elements
        again = [n for unit, n in elements.items() if unit != "root" and self.config.comm.fsdp_reshard]
        gathered = [*elements.values(), *again] * self.config.optim.gradient_accumulation_steps
        sizes = (
            [] if self._ranks.reduce_scatter else list(elements.values()),
            [] if self._ranks.all_gather else gathered,
        )
        calls = {op: StepCalls(s, [0.0] * len(s)) for op, s in zip(OPS, sizes, strict=True)}
        return StockTraffic([[calls]] * self._ranks.world, {"reduce_scatter": 4, "all_gather": 4}, BACKEND)

    def sync_gradients(self, on: bool) -> None:
        """Reduce after the next round of backwards, or only add up every rank's gradients."""
        self._reduces = on

    def by_rank(self, tokens: Tensor) -> Iterator[Tensor]:
        """Every rank's part of the batch in turn, computed with the gathered parameters.

        Asking for the next part takes the gradients that backward left as the rank's; after the last, they are reduced.
        """
        with self._ranks.gathered():
            for rank, part in enumerate(tokens.chunk(self._ranks.world)):
                yield part
                self._ranks.collect(rank)
        if self._reduces:
            self._ranks.reduce()
            self._hand_out_gradients()

    def _hand_out_gradients(self) -> None:
        """To each rank's shards what of the mean is theirs."""
        for i, p in enumerate(self._parameters):
            if p.grad is None:
                continue
            for of_rank, gradient in zip(self._shards, _shards(p.grad, self._ranks.world), strict=True):
                of_rank[i].grad = gradient
            p.grad = None

    def grad_norm(self, gradients: list[Tensor]) -> Tensor:
        """As DTensor takes it: each shard's norm, of these each parameter's over the ranks, of these the whole one."""
        by_rank = torch.stack(torch._foreach_norm(gradients)).view(self._ranks.world, -1)
        norm: Tensor = torch.linalg.vector_norm(by_rank.square().sum(0).sqrt())
        return norm

    def reshard(self) -> None:
        """Nothing is kept gathered."""


def _shards(tensor: Tensor, world: int) -> list[Tensor]:
    """What each rank holds under FSDP2."""
    return [tensor[rows_of_rank(tensor.shape[0], rank, world)] for rank in range(world)]
