"""Pipelines: consecutive blocks of a divided model as the stages of `torch.distributed.pipelining`.

The first stage has the embeddings, the last one the head and the loss. Where these share a weight and lie on different
ranks, its gradient is summed over the two (`Pipeline.reduce_tied`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

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
from fsdp_lab.parallel.division.shares import counts_for_all, ranges
from fsdp_lab.parallel.models.divided import Divided

SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
}
"""gpipe: arXiv 1811.06965; 1f1b: 1806.03377; interleaved: 2104.04473; zbv, zero bubbles in a V: 2401.10241."""
_TWO_STAGES_A_RANK = ("interleaved", "zbv")


def _unchanged(loss: Tensor) -> Tensor:
    return loss


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
    stages is dropped from it. ``length``: positions of the sequences. ``stage_blocks``: how many blocks each stage has,
    in the order of the stages; None: as many as the others. ``device``: where the model will be, if it is on the meta
    device yet. Losses are means over the targets of the batch. Raises ValueError for more stages than blocks, and for
    ``stage_blocks`` that are not all blocks of the model.
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
        device: torch.device | None = None,
    ) -> None:
        self.model, self._micro_batches, self._group = model, micro_batches, group
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.num_stages = ranks * (2 if schedule in _TWO_STAGES_A_RANK else 1)
        self.mine = stages_of(schedule, rank, ranks)
        model.wiring.length = length
        blocks = list(model.blocks.values())
        parts = ranges(_sizes(len(blocks), self.num_stages, stage_blocks))
        made = [
            Stage(model, blocks[parts[i].start : parts[i].stop], i == 0, i == self.num_stages - 1) for i in self.mine
        ]
        self._owners = {stage: r for r in range(ranks) for stage in stages_of(schedule, r, ranks)}
        self._stages = dict(zip(self.mine, made, strict=True))
        self._pair = self._who_shares(group)
        self._drop_others(made)
        device = next(made[0].parameters()).device if device is None else device
        stages = [
            cc.parallel.CompressedStage(stage, i, self.num_stages, device, activations=activations, group=group)
            for i, stage in zip(self.mine, made, strict=True)
        ]
        self._targets = 1.0
        self._seen: Callable[[Tensor], Tensor] = _unchanged
        chosen: Any = stages if schedule in _TWO_STAGES_A_RANK else stages[0]
        self._schedule = SCHEDULES[schedule](chosen, micro_batches, loss_fn=self._loss, scale_grads=False)

    @property
    def is_last(self) -> bool:
        """Has this rank the last stage, and so the loss?"""
        return self.num_stages - 1 in self.mine

    def step(
        self, batch: Tensor, targets: float | None = None, seen: Callable[[Tensor], Tensor] = _unchanged
    ) -> Tensor:
        """Forward and backward of ``batch`` (the same one on every rank); the loss, on every rank.

        Gradients are added to those that are there; a weight that the first and the last stage share has a part of its
        own on each until `reduce_tied`. ``targets``: by which the summed loss is divided; None: by the tokens that are
        predicted in ``batch``. ``seen``: is given every micro-batch's loss before its backward, and returns it.
        ValueError for a batch that does not make micro-batches of one size.
        """
        if batch.shape[0] % self._micro_batches:
            raise ValueError(
                f"pipeline: {batch.shape[0]} sequences do not make {self._micro_batches} micro-batches of one size"
            )
        losses: list[Tensor] = []
        self._targets = self.model.num_targets(batch) if targets is None else targets
        self._seen = seen
        arguments = (batch,) if 0 in self.mine else ()
        of_last = {"target": batch, "losses": losses} if self.is_last else {}
        self._schedule.step(*arguments, **of_last)
        loss_of_all = torch.stack([loss.detach() for loss in losses]).sum() if self.is_last else torch.zeros(())
        return self._from_last(loss_of_all.float().to(batch.device))

    @torch.no_grad()
    def evaluate(self, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """What the model's `Objective.forward` gives, on every rank: one stage after another, nothing compressed."""
        x, rank, counts = batch, dist.get_rank(self._group), self.model.num_sums(weight)
        last = self.num_stages - 1
        sums = torch.zeros(counts, device=batch.device)
        for stage in range(self.num_stages):
            owner, after = self._owners[stage], self._owners.get(stage + 1)
            if owner == rank:
                x = self._stages[stage](x)
                if stage == last:
                    sums = self.model.loss(x, batch, weight).float().reshape(counts)
                elif after != rank:
                    dist.send(x.contiguous(), group=self._group, group_dst=after)
            elif after == rank:
                x = self._between_stages(batch)
                dist.recv(x, group=self._group, group_src=owner)
        return self._from_last(sums).reshape(() if counts == 1 else (counts,))

    def reduce_tied(self) -> None:
        """Sums the gradient of a weight that the first and the last stage share, where they are two ranks'."""
        tied = self.sum_of_tied()
        if tied is not None:
            tied.reduce()

    def sum_of_tied(
        self, method: cc.Compressor | None = None, all_gather: cc.Compressor | None = None, seed: int = 0
    ) -> cc.parallel.ReplicatedGradients | None:
        """What sums the gradient of a weight that embedding and head share over the two ranks that hold it.

        By ``method`` and ``all_gather``, as `ReplicatedGradients` says. None where they share none, or both are of one
        rank, or of others than this.
        """
        if self._pair is None:
            return None
        holder = self.model.hf.get_output_embeddings() if self.is_last else self.model.hf.get_input_embeddings()
        units = {"embedding": [("weight", cast(nn.Parameter, holder.weight))]}
        return cc.parallel.ReplicatedGradients(units, self._pair, method, all_gather, seed=seed, count_stock=True)

    def _loss(self, x: Tensor, batch: Tensor) -> Tensor:
        # zero-bubble schedules detach a stage's output in place, so autograd must have saved another tensor
        x = x.view_as(x)
        return self._seen(self.model.loss(x, batch) / self._targets)

    def _from_last(self, values: Tensor) -> Tensor:
        dist.broadcast(values, group=self._group, group_src=self._owners[self.num_stages - 1])
        return values

    def _between_stages(self, batch: Tensor) -> Tensor:
        """Memory for what one stage hands to the next."""
        positions = len(self.model.wiring.my_positions())
        return torch.empty(batch.shape[0], positions, self.model.hf.config.hidden_size, device=batch.device)

    def _drop_others(self, stages: list[Stage]) -> None:
        """Drops the parameters of other ranks' stages from the model: a weight of two stages has one name on each."""
        own = {id(module) for stage in stages for module in stage.modules()}
        for module in self.model.hf.modules():
            for name, _ in list(module.named_parameters(recurse=False)) if id(module) not in own else ():
                setattr(module, name, None)

    def _who_shares(self, group: dist.ProcessGroup) -> dist.ProcessGroup | None:
        """The group of the first and the last stage's ranks, where they are two, share a weight, and this is one."""
        head: Any = self.model.hf.get_output_embeddings()
        is_tied = head.weight is self.model.hf.get_input_embeddings().weight
        last = self._owners[self.num_stages - 1]
        if not is_tied or last == 0 or dist.get_rank(group) not in (0, last):
            return None
        pair = [dist.get_global_rank(group, rank) for rank in (0, last)]
        return dist.new_group(pair, use_local_synchronization=True)


def _sizes(blocks: int, stages: int, given: Sequence[int] | None) -> list[int]:
    """How many of the model's blocks each stage has. ValueError when ``given`` are no such numbers."""
    if given is None:
        return counts_for_all("blocks", blocks, [1] * stages)
    if len(given) != stages or min(given) < 1 or sum(given) != blocks:
        raise ValueError(f"stage_blocks: got {list(given)}, wants {stages} numbers above 0 that make {blocks} blocks")
    return list(given)
