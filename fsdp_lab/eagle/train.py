"""Train a draft for a target, on one or more ranks; measured, recorded and resumable as `fsdp_lab.train`.

    python -m fsdp_lab.eagle.train --target_dir DIR --data_path chats.jsonl --output_dir OUT
    python -m fsdp_lab.launch --standalone --nproc-per-node=2 -m -- fsdp_lab.eagle.train ... --comm_compress topk

OUT/runs/NAME has the draft that serving engines load (`export`), the run's settings, curve and checkpoints;
OUT/vocabulary.safetensors is reused by a later run into OUT.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fsdp_lab.checkpoint import Saving
from fsdp_lab.eagle.choice import Choice
from fsdp_lab.eagle.data.chats import Chats, open_chats
from fsdp_lab.eagle.data.features import Features, open_features
from fsdp_lab.eagle.draft.config import DraftOptimConfig, EagleConfig, check
from fsdp_lab.eagle.training.model import DraftModel, build_draft, load_target
from fsdp_lab.eagle.training.tally import Tally
from fsdp_lab.ranks import faults
from fsdp_lab.run.card import write_card
from fsdp_lab.run.display.summary import summary
from fsdp_lab.run.entry import run_training
from fsdp_lab.run.run import Run
from fsdp_lab.run.steps.loop import Loop
from fsdp_lab.training.bf16_products import fast_products
from fsdp_lab.training.communication import Communication
from fsdp_lab.training.optim import build_optimizer, take_step


def train(config: EagleConfig) -> dict[str, Any]:
    """One run from its settings to its results row, which it returns. ValueError for what the user can mend."""
    check(config)
    on_cpu = None if torch.cuda.is_available() else config.eagle.dtype
    # the ranks agree, the folder is theirs, signals are heeded, and every way out leaves a results row
    with Run.start(config, model="draft") as run, fast_products(on_cpu) as products:
        target = load_target(config)
        data = open_chats(config, target, run)
        features = open_features(config, target, run)
        model = build_draft(config, target, data.vocabulary, run.ranks)
        run.note(**data.row(), **model.row(), bf16_products=products)
        comm = Communication(model, config.comm, config.run.seed)  # nothing at all for `none`
        total_steps = data.total_steps(config.optim)
        optimizer, schedule = build_optimizer(model.updated, warmed_up(config.optim, total_steps), total_steps)
        tally = Tally(run.ranks, config.run.log_interval)
        choice = Choice(config, model, data, run)
        saving = Saving(run, model, optimizer, schedule, data, comm, tally)
        loop = Loop(run, comm, total_steps, data.tokens_in_step, saving.restore_latest())
        with saving.on_stop(loop):  # told to stop, it leaves one more checkpoint
            choice.when_due(loop.done, comm, loop)  # what it was stopped before
            for step in loop.steps():  # timed, profiled and logged in there
                loss = forward_backward(model, data, features, tally, run)
                with run.phase("optimizer"):
                    outcome = take_step(model.updated, optimizer, schedule, config.optim.max_grad_norm, model.grad_norm)
                loop.after_step(step, loss, outcome, tally.scalars)
                saving.after_step(loop)
                choice.when_due(step, comm, loop)
            choice.at_the_end(total_steps, comm, loop)
            run.note(**saving.row(), **data.trained(total_steps), **tally.row(), **choice.row())
            run.note(**(features.row() if features else {}))
        row = loop.finish()
        choice.save_last()
        if config.run.save_model and run.ranks.is_first and run.paths.model.is_dir():
            write_card(run.paths.model, row)
        saving.finished()
        run.say(summary(row, run.paths.written(config.run), loop.profile))
        return row


def forward_backward(model: DraftModel, data: Chats, features: Features | None, tally: Tally, run: Run) -> Tensor:
    """The micro-batches of one step; returns this rank's part of the loss, whose mean over the ranks is the loss.

    It is divided by what all ranks and micro-batches supervise; gradients are exchanged with the last micro-batch only.
    """
    batches = [data.next_batch() for _ in range(data.micro_batches)]
    counts = torch.stack([model.module.counts(batch.loss_mask) for batch in batches]).sum(0).to(run.ranks.device)
    counts = run.ranks.sum(counts) / run.ranks.world
    total, outcomes = torch.zeros((), device=run.ranks.device), []
    for i, batch in enumerate(batches):
        tokens, mask, _ = batch.to(run.ranks.device)
        model.sync_gradients(i == len(batches) - 1)
        with run.phase("forward"):
            seen = features.seen(batch) if features else None
            outcome = model.module(tokens, mask, counts, seen)
        with run.phase("backward"):
            faults.spoiled(outcome.loss).backward()
        total += outcome.loss.detach()
        outcomes.append(outcome)
    tally.add(outcomes)
    return total


def warmed_up(config: DraftOptimConfig, total_steps: int) -> DraftOptimConfig:
    """``config`` with its warm-up as a number of steps, not as a share of them."""
    if config.warmup_steps is not None:
        return config
    return replace(config, warmup_steps=round(config.warmup_ratio * total_steps))


if __name__ == "__main__":
    run_training(train, EagleConfig, "fsdp_lab.eagle.train")
