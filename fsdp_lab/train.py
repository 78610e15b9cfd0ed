"""Train a language model under FSDP2 with compressed collectives, measure it, and record the run.

    python -m fsdp_lab.launch --standalone --nproc-per-node=2 -m -- fsdp_lab.train --comm_compress topk

`./run_safe_training.sh` does this with the environment it needs; `--help` lists every flag.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from fsdp_lab.checkpoint import Saving
from fsdp_lab.data.corpus import Corpus
from fsdp_lab.data.opening import open_corpus
from fsdp_lab.models import Model, remarks, save_pretrained
from fsdp_lab.parallel.build import build_model
from fsdp_lab.ranks import faults
from fsdp_lab.run.card import write_card
from fsdp_lab.run.display.summary import summary
from fsdp_lab.run.entry import run_as_program
from fsdp_lab.run.run import Run
from fsdp_lab.run.steps.loop import Loop
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.models.presets import resolve
from fsdp_lab.training.bf16_products import fast_products
from fsdp_lab.training.communication import Communication
from fsdp_lab.training.evaluate import Evaluation, evaluate
from fsdp_lab.training.local_steps import LocalSteps, own_rates
from fsdp_lab.training.loss_scaler import LossScaler
from fsdp_lab.training.optim import build_optimizer, take_step


def train(config: TrainConfig) -> dict[str, Any]:
    """One run from its settings to its results row, which it returns. ValueError for what the user can mend."""
    config = resolve(config, has_gpu=torch.cuda.is_available())
    on_cpu = None if torch.cuda.is_available() else config.model.mixed_precision
    # the ranks agree, the folder is theirs, signals are heeded, and every way out leaves a results row
    with Run.start(config) as run, fast_products(on_cpu) as products:
        data = open_corpus(config, run.ranks, run.name, run.check_while_reading)
        model = build_model(config, run.ranks, data.tokenizer.vocab_size, data.tokenizer.eot_id, data.tokenizer.pad_id)
        run.note(**data.row(), **model.row(), bf16_products=products)
        for remark in remarks(model, config, run.ranks):
            run.say(remark)
        comm = Communication(model, config.comm, config.run.seed, config.optim.optimizer)  # nothing at all for `none`
        total_steps = data.total_steps(config.optim)
        sent = config.comm.optimizer_compress, config.comm.optimizer_gather, config.comm.optimizer_until_freeze
        how = model.operators["adamw"], comm.exchanges, *sent, own_rates(comm.outer, config.comm)
        optimizer, schedule = build_optimizer(model.updated, config.optim, total_steps, *how)
        scaler = LossScaler(run.ranks.device, model.param_dtype)  # of fp16 gradients; nothing at all in other dtypes
        saving = Saving(run, model, optimizer, schedule, data, comm, scaler)
        restored = saving.restore_latest()
        local = LocalSteps(comm.outer, total_steps, run.say)  # nothing at all unless replicas train by themselves
        tokens_in_step = partial(data.tokens_in_step, micro_batches=config.optim.gradient_accumulation_steps)
        loop = Loop(run, comm, total_steps, tokens_in_step, restored)
        with saving.on_stop(loop):  # told to stop, it leaves one more checkpoint
            evaluate_when_due(loop.done, model, data, comm, loop)  # what it was stopped before
            for step in loop.steps():  # timed, profiled and logged in there
                loss = forward_backward(model, data, config, scaler, comm, run)
                with run.phase("optimizer"):
                    clipped = config.optim.max_grad_norm, model.grad_norm, scaler, model.gradients()
                    outcome = take_step(model.updated, optimizer, schedule, *clipped, local.before_update)
                    local.after_update(step, outcome.taken)
                loop.after_step(step, loss, outcome)
                saving.after_step(loop)
                evaluate_when_due(step, model, data, comm, loop)
            evaluation = validate(model, data, comm, loop)
            run.note(**saving.row(), **data.trained(run.ranks, total_steps * config.optim.gradient_accumulation_steps))
        row = loop.finish(evaluation)
        if config.run.save_model:
            save_model(model, data, run, row)
        saving.finished()
        run.say(summary(row, run.paths.written(config.run), loop.profile))
        return row


def forward_backward(
    model: Model, data: Corpus, config: TrainConfig, scaler: LossScaler, comm: Communication, run: Run
) -> Tensor:
    """The micro-batches of one step; returns this rank's part of their loss (of virtual ranks the sum), nats a token.

    Its mean over the ranks is the mean over all tokens that they predict in this step. Gradients are exchanged with the
    last micro-batch only: one compression an optimizer step.
    """
    micro_batches = config.optim.gradient_accumulation_steps
    total = torch.zeros((), device=run.ranks.device)
    comm.gradients_come_scaled(scaler.get_scale())
    batches = [data.next_batch() for _ in range(micro_batches)]
    targets = sum(batch.targets for batch in batches)  # a rank's share of the tokens that all predict in this step
    for micro, batch in enumerate(batches):
        model.sync_gradients(micro == micro_batches - 1)
        for part in model.by_rank(batch.rows.to(run.ranks.device, non_blocking=True)):
            if model.pipeline is not None:  # forward and backward of its micro-batches take turns
                with run.phase("backward"):
                    total += model.pipeline.step(part, targets, faults.spoiled)
                continue
            with run.phase("forward"):
                loss = model.module(part) / targets
            with run.phase("backward"):
                scaler.scale(faults.spoiled(loss)).backward()
            total += loss.detach()
    return total


def evaluate_when_due(step: int, model: Model, data: Corpus, comm: Communication, loop: Loop) -> None:
    """An evaluation in the middle of training, if this is the time for one."""
    if loop.evaluations.is_due(step):
        loop.evaluations.show(step, validate(model, data, comm, loop))


def validate(model: Model, data: Corpus, comm: Communication, loop: Loop) -> Evaluation:
    """Loss on the validation split with exact weights, whatever carries parameters in training."""
    with comm.exact(), loop.evaluations.under_way():
        run = loop.run
        evaluation = evaluate(model.module, data.validation_batches(), run.ranks, run.after_validation_batch)
        model.reshard()  # the next training step sends what every other one sends
    return evaluation


def save_model(model: Model, data: Corpus, run: Run, row: dict[str, Any]) -> None:
    """``final_model/``: weights, configuration and tokenizer for Hugging Face's `from_pretrained`, and a model card."""
    with run.saving_model():
        save_pretrained(model, run.paths.model, run.ranks)
        if run.ranks.is_first:
            data.tokenizer.save_pretrained(run.paths.model)
            write_card(run.paths.model, row)


if __name__ == "__main__":
    run_as_program(train)
