"""Objectives that run a model in another way than its own forward: replicated by DDP, or as a pipeline."""

from __future__ import annotations

import inspect
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.parallel.pipeline import Pipeline

_ARGUMENTS = inspect.signature(DistributedDataParallel).parameters
_SENDS_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _ARGUMENTS else "broadcast_buffers"  # torch 2.11
_NO_BUFFERS: Any = {_SENDS_BUFFERS: False}


class Replicated(Objective):
    """``whole`` under DistributedDataParallel over ``group``; every rank has built the same weights."""

    def __init__(self, whole: Objective, group: dist.ProcessGroup) -> None:
        super().__init__(whole.hf)
        # buffers are constants here: sending them in every forward would be traffic that nobody counts
        wrapped = DistributedDataParallel(whole, process_group=group, init_sync=False, **_NO_BUFFERS)
        self._whole, self._wrapped = (whole,), (wrapped,)  # no submodules: parameters have one name

    @property
    def ddp(self) -> DistributedDataParallel:
        """The wrapped model, whose backward averages gradients over the group."""
        return self._wrapped[0]

    def forward(self, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """The summed loss of this rank's ``batch`` (`Objective.forward`); its backward averages gradients by DDP."""
        sums: Tensor = self.ddp(batch, weight)
        return sums

    def num_targets(self, batch: Tensor) -> int:
        """How many tokens are predicted in ``batch``, as the whole model says."""
        return self._whole[0].num_targets(batch)


class Pipelined(Objective):
    """The stages that this rank has; its forward is for evaluation, `Pipeline.step` for training."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline.model.hf)
        self._pipeline = (pipeline,)

    def forward(self, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """The summed loss of ``batch`` (`Objective.forward`), on every rank of the pipeline."""
        return self._pipeline[0].evaluate(batch, weight)

    def num_targets(self, batch: Tensor) -> int:
        """How many tokens are predicted in ``batch``, as the whole model says."""
        return self._pipeline[0].model.num_targets(batch)
