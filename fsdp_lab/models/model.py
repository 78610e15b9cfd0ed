"""The model as the training loop sees it: the same methods whether each rank is a process or one process plays all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

import comm_compress as cc
from fsdp_lab.measure.profiling import StockTraffic
from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.models.attached import Attached, Gathers, Replicas
from fsdp_lab.models.matrices import how_matrices_travel, matrices_of_blocks
from fsdp_lab.models.saved.weights import Weight, weights_of
from fsdp_lab.models.shards.norms import world_norm
from fsdp_lab.models.shards.pieces import Piece
from fsdp_lab.settings.groups import CommConfig


class Placed(NamedTuple):
    """A parameter that is a piece of a whole one, which has ``shape``."""

    piece: Piece
    shape: torch.Size


M = TypeVar("M", bound=nn.Module)


@dataclass
class Sharded(Generic[M]):
    """A module sharded by FSDP2, together with what a results row says about it."""

    module: M
    name: str
    num_parameters: int
    param_dtype: str
    flops_per_token: float | None
    operators: dict[str, str] = field(default_factory=dict)
    """The implementation of each operator that the model has (`fsdp_lab.settings.operators.table`); empty: a draft."""
    start_digest: str | None = None
    """Of the saved weights that it began with; None: fresh weights, or not the first rank."""
    outer: cc.outer.Handle | cc.outer.VirtualReplicas | None = field(default=None, init=False)
    """What synchronises replicas, where each trains by itself; made by `attach`."""
    replica: int | None = field(default=None, init=False)
    """Which replica this process is of, where each trains by itself: then their weights are not the same."""

    @property
    def updated(self) -> nn.Module:
        """The module whose parameters the optimizer updates: this process's shards, and their gradients."""
        return self.module

    def attach(
        self, gradients: cc.Compressor | None, parameters: cc.Compressor | None, config: CommConfig, seed: int
    ) -> Attached:
        """Compresses gradients and parameters with the methods given; returns the handle that counts their bytes."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"comm_compress: .* are frozen")  # `frozen_advice` names our own flag
            return cc.attach(
                self.module,
                reduce_scatter=gradients,
                all_gather=parameters,
                keep_frozen=config.fsdp_keep_frozen,
                prefetch=config.fsdp_prefetch,
                overlap_reduce=config.fsdp_overlap_reduce,
                seed=seed,
            )

    def attach_optimizer(self, config: CommConfig, seed: int) -> Gathers:
        """Lets muon have the blocks' matrices whole, by exchanges of their own, as ``config`` says.

        Raises ValueError for a method that has nothing to carry here.
        """
        return cc.optim.attach(matrices_of_blocks(self.module), **how_matrices_travel(config, seed))

    def between_replicas(self, seed: int) -> Replicas:
        """Lets an optimizer exchange what it wants between replicas. ValueError where there are none."""
        raise ValueError("optimizer: there is one replica; give dp_replicas 2 or more, or adamw")

    def stock_traffic(self) -> StockTraffic:
        """What is known before the training about a step's traffic that no hook sees: here nothing."""
        return StockTraffic([], {}, "")

    def pieces(self) -> dict[str, Placed]:
        """Which parameters are a piece of a whole one here, by their names in `updated`: by default none."""
        return {}

    def first_names(self) -> dict[str, str]:
        """The name of a parameter that has several, by each of its names in `updated`: under it a checkpoint has it."""
        named = dict(self.updated.named_parameters(remove_duplicate=False))
        first = {id(p): name for name, p in reversed(named.items())}
        return {name: first[id(p)] for name, p in named.items()}

    def sync_gradients(self, on: bool) -> None:
        """Whether the next backward exchanges gradients or only accumulates them on each rank."""
        assert isinstance(self.module, FSDPModule)
        self.module.set_requires_gradient_sync(on)

    def by_rank(self, tokens: Tensor) -> Iterator[Tensor]:
        """The batches of the ranks that this process plays; ask for the next one after the backward of the last one."""
        yield tokens

    def gradients(self) -> list[list[Tensor]]:
        """The gradients that are clipped by one norm: all that this process has, or those of each virtual replica."""
        return [[p.grad for p in self.updated.parameters() if p.grad is not None]]

    def grad_norm(self, gradients: list[Tensor]) -> Tensor:
        """The gradients' norm over all ranks that train one model, the same on those; finite on all ranks, or on none.

        All ranks call this together.
        """
        return world_norm(gradients)

    def reshard(self) -> None:
        """Frees the parameters that the root unit keeps gathered; the next forward gathers them again."""
        assert isinstance(self.module, FSDPModule)
        self.module.reshard()

    def row(self) -> dict[str, Any]:
        """The model fields of a results row."""
        return {
            "model": self.name,
            "num_parameters": self.num_parameters,
            "trainable_parameters": sum(p.numel() for p in self.module.parameters() if p.requires_grad),
            "param_dtype": self.param_dtype,
            "flops_per_token": self.flops_per_token,
            "operators": self.operators or None,
            "start_digest": self.start_digest,
        }


class Stages(Protocol):
    """The stages of a pipeline that this process has, with its schedule."""

    def step(self, batch: Tensor, targets: float, seen: Callable[[Tensor], Tensor]) -> Tensor:
        """Forward and backward of ``batch``; its summed loss by ``targets``. ``seen`` gets each micro-batch's."""
        ...


class Model(Sharded[Objective]):
    """A sharded language model, as `build_model` returns it."""

    pipeline: Stages | None = None
    """What trains it instead of its own forward, where it is a pipeline."""

    def whole_weights(self) -> dict[str, Weight]:
        """The whole float32 weights by their names in the Hugging Face model."""
        return weights_of(self.module.hf)
