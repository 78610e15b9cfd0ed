"""W virtual ranks in one process (--virtual_ranks): the same numbers as W processes would get, without their speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import comm_compress as cc
from fsdp_lab.measure.profiling import OPS, StepCalls, StockTraffic
from fsdp_lab.models.architectures.families import blocks_of
from fsdp_lab.models.matrices import how_matrices_travel, matrices_of_blocks
from fsdp_lab.models.model import Model
from fsdp_lab.models.shards.sharding import rows_of_rank
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import CommConfig

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BACKEND = "gloo"
"""The backend whose stock collectives are counted: the one that CPU ranks use."""


@dataclass
class VirtualModel(Model):
    """An unsharded model that each of W ranks uses in turn, with `cc.VirtualRanks` between backward and optimizer step.

    The optimizer updates all ranks' shards, which are views of the exact weights. Updates and norms of whole parameters
    would differ in their last bits, because torch's kernels round a tensor's last elements differently from the others.
    """

    config: TrainConfig = field(kw_only=True)
    _ranks: cc.VirtualRanks = field(init=False)
    _reduces: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        world = self.config.run.virtual_ranks
        self._parameters = list(self.module.parameters())
        sharded = [
            [nn.Parameter(shard, p.requires_grad) for shard in _shards(p.detach(), world)] for p in self._parameters
        ]
        self._shards = list(zip(*sharded, strict=True))
        self._updated = nn.ParameterList(shard for of_rank in self._shards for shard in of_rank)

    @property
    def updated(self) -> nn.Module:
        """A module of every rank's shards, one rank after the other, which the optimizer updates."""
        return self._updated

    def attach(
        self, gradients: cc.Compressor | None, parameters: cc.Compressor | None, config: CommConfig, seed: int
    ) -> cc.VirtualRanks:
        """Compresses between the virtual ranks. Units are named as FSDP2's: random numbers depend on their names."""
        self._ranks = cc.VirtualRanks(
            self.module,
            self.config.run.virtual_ranks,
            [f"hf.{name}" for name in blocks_of(self.module.hf)],
            reduce_scatter=gradients,
            all_gather=parameters,
            reshard_after_forward=config.fsdp_reshard,
            seed=seed,
            param_dtype=_DTYPES[self.param_dtype],
        )
        return self._ranks

    def attach_optimizer(self, config: CommConfig, seed: int) -> cc.optim.VirtualHandle:
        """As `Model.attach_optimizer`, for the shards of all virtual ranks."""
        shards = {id(p): of_p for p, *of_p in zip(self._parameters, *self._shards, strict=True)}
        units = {
            unit: {name: shards[id(p)] for name, p in held.items()}
            for unit, held in matrices_of_blocks(self.module).items()
        }
        return cc.optim.VirtualHandle(units, **how_matrices_travel(config, seed))

    def stock_traffic(self) -> StockTraffic:
        """What FSDP2's own collectives would send where nothing is compressed; no such collective runs here."""
        elements = self._ranks.unit_elements
        again = [n for unit, n in elements.items() if unit != "root" and self.config.comm.fsdp_reshard]
        gathered = [*elements.values(), *again] * self.config.optim.gradient_accumulation_steps
        sizes = (
            [] if self._ranks.reduce_scatter else list(self._ranks.trainable_elements.values()),
            [] if self._ranks.all_gather else gathered,
        )
        calls = {op: StepCalls(s, [0.0] * len(s)) for op, s in zip(OPS, sizes, strict=True)}
        itemsize: dict[cc.Op, int] = {"reduce_scatter": 4, "all_gather": _DTYPES[self.param_dtype].itemsize}
        return StockTraffic([[calls]] * self._ranks.world, itemsize, BACKEND)

    def sync_gradients(self, on: bool) -> None:
        """Whether gradients are reduced once every rank has run its next backward, or only accumulated."""
        self._reduces = on

    def by_rank(self, tokens: Tensor) -> Iterator[Tensor]:
        """Yields every rank's batch in turn, while the gathered parameters are in place.

        When the next batch is asked for, the gradients that backward left are taken as the last rank's; after the last
        batch they are reduced.
        """
        with self._ranks.gathered():
            for rank, batch in enumerate(tokens.chunk(self._ranks.world)):
                yield batch
                self._ranks.collect(rank)
        if self._reduces:
            self._ranks.reduce()
            self._hand_out_gradients()

    def _hand_out_gradients(self) -> None:
        """Gives every rank's shards their rows of the mean gradient."""
        for i, p in enumerate(self._parameters):
            if p.grad is None:
                continue
            for of_rank, gradient in zip(self._shards, _shards(p.grad, self._ranks.world), strict=True):
                of_rank[i].grad = gradient
            p.grad = None

    def grad_norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of all gradients in DTensor's order: shards first, then parameters over the ranks, then all."""
        by_rank = torch.stack(torch._foreach_norm(gradients)).view(self._ranks.world, -1)
        norm: Tensor = torch.linalg.vector_norm(by_rank.square().sum(0).sqrt())
        return norm

    def reshard(self) -> None:
        """Does nothing, because virtual ranks keep no parameters gathered."""


def _shards(tensor: Tensor, world: int) -> list[Tensor]:
    """The rows of ``tensor`` that each rank would hold under FSDP2."""
    return [tensor[rows_of_rank(tensor.shape[0], rank, world)] for rank in range(world)]
