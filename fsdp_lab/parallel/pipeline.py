"""Pipelines: consecutive blocks of a divided model as the stages of `torch.distributed.pipelining`.

The first stage has the embeddings, the last one the head and the loss. Where these share a weight and lie on different
ranks, its gradient is summed over the two (`Pipeline.reduce_tied`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

import comm_compress as cc
from fsdp_lab.parallel.divided import Divided
from fsdp_lab.parallel.shares import counts_for_all, ranges

SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
}
"""gpipe: arXiv 1811.06965; 1f1b: 1806.03377; interleaved: 2104.04473; zbv, zero bubbles in a V: 2401.10241."""
_TWO_STAGES_A_RANK = ("interleaved", "zbv")


def stages_of(schedule: str, rank: int, ranks: int) -> list[int]:
    """The numbers of the stages that ``rank`` of ``ranks`` has: one, or two where the schedule wants it so."""
    if schedule == "interleaved":
        return [rank, ranks + rank]
    return [rank, 2 * ranks - 1 - rank] if schedule == "zbv" else [rank]


class Stage(nn.Module):
    """Some consecutive blocks of ``model``, with what is in front of the first and behind the last one."""

    def __init__(self, model: Divided, blocks: Sequence[nn.Module], is_first: bool, is_last: bool) -> None:
        super().__init__()
        before, behind = model.ends()
        self.blocks, self.is_first = nn.ModuleList(blocks), is_first
        self.before = nn.ModuleList(before if is_first else [])
        self.behind = nn.ModuleList(behind if is_last else [])
        self._model = (model,)  # not a submodule: its other blocks are other stages'

    def forward(self, x: Tensor) -> Tensor:
        """``x``: the batch in the first stage, else what the stage before has made."""
        (model,) = self._model
        return model.through(self.blocks, model.embed(x) if self.is_first else x)


class Pipeline:
    """The stages that this rank of ``group`` has of ``model``; the schedule that runs them in micro-batches.

    ``model``: whole (or divided over the ranks of its wiring), built alike on all ranks; what belongs to other ranks'
    stages is dropped from it. ``length``: positions of the sequences. Losses are means over the targets of the batch.
    ``stage_blocks``: how many blocks each stage has, in the order of the stages; None: as many as the others.
    Raises ValueError for more stages than blocks, and for ``stage_blocks`` that are not all blocks of the model.
    """

    def __init__(
        self,
        model: Divided,
        schedule: str,
        micro_batches: int,
        group: dist.ProcessGroup,
        activations: cc.parallel.Activations,
        length: int,
        stage_blocks: Sequence[int] | None = None,
    ) -> None:
        self.model, self._micro_batches = model, micro_batches
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.num_stages = ranks * (2 if schedule in _TWO_STAGES_A_RANK else 1)
        self.mine = stages_of(schedule, rank, ranks)
        model.wiring.length = length
        blocks = list(model.blocks.values())
        parts = ranges(_sizes(len(blocks), self.num_stages, stage_blocks))
        made = [
            Stage(model, blocks[parts[i].start : parts[i].stop], i == 0, i == self.num_stages - 1) for i in self.mine
        ]
        last = next(r for r in range(ranks) if self.num_stages - 1 in stages_of(schedule, r, ranks))
        self._tied = self._shared_weight(group, last)
        self._drop_others(made)
        device = next(made[0].parameters()).device
        stages = [
            cc.parallel.CompressedStage(stage, i, self.num_stages, device, activations=activations, group=group)
            for i, stage in zip(self.mine, made, strict=True)
        ]
        chosen: Any = stages if schedule in _TWO_STAGES_A_RANK else stages[0]
        self._schedule = SCHEDULES[schedule](chosen, micro_batches, loss_fn=self._loss, scale_grads=False)

    @property
    def is_last(self) -> bool:
        """Has this rank the last stage, and so the loss?"""
        return self.num_stages - 1 in self.mine

    def step(self, batch: Tensor) -> Tensor | None:
        """Forward and backward of ``batch`` (the same one on every rank); the mean loss, where the last stage is.

        ValueError for a batch that does not make micro-batches of one size.
        """
        if batch.shape[0] % self._micro_batches:
            raise ValueError(
                f"pipeline: {batch.shape[0]} sequences do not make {self._micro_batches} micro-batches of one size"
            )
        losses: list[Tensor] = []
        arguments = (batch,) if 0 in self.mine else ()
        targets = {"target": batch, "losses": losses} if self.is_last else {}
        self._schedule.step(*arguments, **targets)
        self.reduce_tied()
        return torch.stack([loss.detach() for loss in losses]).sum() if self.is_last else None

    def reduce_tied(self) -> None:
        """Sums the gradient of a weight that the first and the last stage share, where they are two ranks'."""
        if self._tied is not None:
            self._tied.reduce()

    def _loss(self, x: Tensor, batch: Tensor) -> Tensor:
        # zero-bubble schedules detach a stage's output in place, so autograd must have saved another tensor
        x = x.view_as(x)
        return self.model.loss(x, batch) / (self.model.num_targets(batch) * self._micro_batches)

    def _drop_others(self, stages: list[Stage]) -> None:
        """Drops the parameters of other ranks' stages from the model."""
        own = {id(p) for stage in stages for p in stage.parameters()}
        for module in self.model.hf.modules():
            for name, p in module.named_parameters(recurse=False):
                if id(p) not in own:
                    setattr(module, name, None)

    def _shared_weight(self, group: dist.ProcessGroup, last: int) -> cc.parallel.ReplicatedGradients | None:
        """The weight that embedding and head share, to be summed over rank 0 and the ``last`` stage's rank.

        None where they share none, or both are of one rank, or of others than this.
        """
        head: Any = self.model.hf.get_output_embeddings()
        is_tied = head.weight is self.model.hf.get_input_embeddings().weight
        if not is_tied or last == 0 or dist.get_rank(group) not in (0, last):
            return None
        pair = [dist.get_global_rank(group, rank) for rank in (0, last)]
        both = dist.new_group(pair, use_local_synchronization=True)
        return cc.parallel.ReplicatedGradients({"embedding": [("weight", head.weight)]}, both)


def _sizes(blocks: int, stages: int, given: Sequence[int] | None) -> list[int]:
    """How many of the model's blocks each stage has. ValueError when ``given`` are no such numbers."""
    if given is None:
        return counts_for_all("blocks", blocks, [1] * stages)
    if len(given) != stages or min(given) < 1 or sum(given) != blocks:
        raise ValueError(f"stage_blocks: got {list(given)}, wants {stages} numbers above 0 that make {blocks} blocks")
    return list(given)
