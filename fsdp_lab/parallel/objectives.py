"""Objectives that run a model in another way than its own forward: replicated by DDP, or as a pipeline."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.parallel.pipeline import Pipeline


class Replicated(Objective):
    """``whole`` under DistributedDataParallel over ``group``; every rank has built the same weights."""

    def __init__(self, whole: Objective, group: dist.ProcessGroup) -> None:
        super().__init__(whole.hf)
        wrapped = DistributedDataParallel(whole, process_group=group, init_sync=False)
        self._whole, self._wrapped = (whole,), (wrapped,)  # no submodules: parameters have one name

    @property
    def ddp(self) -> DistributedDataParallel:
        """What averages the gradients."""
        return self._wrapped[0]

    def forward(self, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """As the whole model's, with DDP's reduction in backward."""
        sums: Tensor = self.ddp(batch, weight)
        return sums

    def num_targets(self, batch: Tensor) -> int:
        """As the whole model's."""
        return self._whole[0].num_targets(batch)


class Pipelined(Objective):
    """The stages that this rank has; its forward is for evaluation, `Pipeline.step` for training."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline.model.hf)
        self._pipeline = (pipeline,)

    def forward(self, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """As the whole model's, on every rank of the pipeline."""
        return self._pipeline[0].evaluate(batch, weight)

    def num_targets(self, batch: Tensor) -> int:
        """As the whole model's."""
        return self._pipeline[0].model.num_targets(batch)
