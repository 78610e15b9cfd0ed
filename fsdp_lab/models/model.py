"""What is trained as the training loop sees it, whether ranks are processes or played by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

import comm_compress as cc
from fsdp_lab.measure.profiling import StockTraffic
from fsdp_lab.models.architectures.causal_lm import CausalLM
from fsdp_lab.models.norms import world_norm
from fsdp_lab.settings.groups import CommConfig

M = TypeVar("M", bound=nn.Module)


@dataclass
class Sharded(Generic[M]):
    """A sharded module and what a results row says of it."""

    module: M
    name: str
    num_parameters: int
    param_dtype: str
    flops_per_token: float | None

    @property
    def updated(self) -> nn.Module:
        """Holds what the optimizer updates: this process's shards of the parameters, and their gradients."""
        return self.module

    def attach(
        self, gradients: cc.Compressor | None, parameters: cc.Compressor | None, config: CommConfig, seed: int
    ) -> cc.Handle | cc.VirtualRanks:
        """Compress what is to be compressed of the traffic; what counts it and takes it back."""
        prefetch = config.fsdp_prefetch
        return cc.attach(self.module, reduce_scatter=gradients, all_gather=parameters, prefetch=prefetch, seed=seed)

    def stock_traffic(self) -> StockTraffic:
        """What is known beforehand of a step's traffic that passes no hook: nothing."""
        return StockTraffic([], {}, "")

    def sync_gradients(self, on: bool) -> None:
        """Exchange gradients in the next backward, or only accumulate them on each rank."""
        assert isinstance(self.module, FSDPModule)
        self.module.set_requires_gradient_sync(on)

    def by_rank(self, tokens: Tensor) -> Iterator[Tensor]:
        """This process's batch, rank by rank: the next part is asked for after the backward of the last one."""
        yield tokens

    def grad_norm(self, gradients: list[Tensor]) -> Tensor:
        """The world-wide norm, the same on all ranks; collective."""
        return world_norm(gradients)

    def reshard(self) -> None:
        """Let go of what the root keeps gathered: the next forward gathers it anew."""
        assert isinstance(self.module, FSDPModule)
        self.module.reshard()

    def row(self) -> dict[str, Any]:
        """The model fields of a results row."""
        return {
            "model": self.name,
            "num_parameters": self.num_parameters,
            "param_dtype": self.param_dtype,
            "flops_per_token": self.flops_per_token,
        }


class Model(Sharded[CausalLM]):
    """A causal language model."""
