"""Train a draft for a target, on one or more ranks.

    python -m fsdp_lab.eagle.train --target_dir DIR --data_path chats.jsonl --output_dir OUT
    torchrun --nproc-per-node=2 -m fsdp_lab.eagle.train ... --comm_compress topk --comm_config_json '{"ratio": 0.01}'

OUT/draft is what serving engines load (`export`); OUT/vocabulary.safetensors is reused by a later run into OUT.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.utils.data import DistributedSampler

import comm_compress as cc
from fsdp_lab.cli import parse_as
from fsdp_lab.config import OptimConfig, TrainConfig
from fsdp_lab.distributed import Ranks, join
from fsdp_lab.eagle.data import Example, collate, load_chat_tokenizer, load_examples, vocabulary_of
from fsdp_lab.eagle.draft import Draft
from fsdp_lab.eagle.export import load_draft, save_draft, verifier_of
from fsdp_lab.eagle.target import Target
from fsdp_lab.eagle.training import EagleTrainingModel, Outcome, shard
from fsdp_lab.eagle.vocabulary import Vocabulary
from fsdp_lab.optim import build_optimizer, take_step
from fsdp_lab.settings import Config, Settings, setting
from fsdp_lab.user_errors import unix_pipes, user_errors


@dataclass(frozen=True)
class EagleSettings(Settings):
    """What to train, on what, and how."""

    target_dir: str | None = setting(None, "folder of the target model")
    data_path: str | None = setting(None, "JSON lines of conversations, best with answers of the target's own")
    output_dir: str = setting("eagle_output", "folder for the draft and its vocabulary")
    draft_dir: str | None = setting(None, "folder of a draft to go on from, with its vocabulary")
    draft_vocab_size: int = setting(16000, "tokens that the draft knows (at most the target's)", at_least=1)
    max_length: int = setting(2048, "tokens of a conversation that are kept", at_least=4)
    steps_ahead: int = setting(7, "length of the training-time test", at_least=1)
    step_decay: float = setting(0.8, "each further step's loss counts by this factor less", above=0, at_most=1)
    dtype: str = setting("fp32", "dtype of target and draft's arithmetic", choices=("fp32", "bf16"))
    shard_target: bool = setting(False, "shard the target's blocks too")
    batch_size: int = setting(4, "conversations per rank and step", at_least=1)
    max_steps: int = setting(1000, "optimiser steps", at_least=1)
    learning_rate: float = setting(1e-4, "peak learning rate", above=0)
    warmup_ratio: float = setting(0.015, "share of the steps with a rising rate", at_least=0, below=1)
    max_grad_norm: float = setting(0.5, "clip the global gradient norm to this; 0: no clipping", at_least=0)
    log_every: int = setting(10, "steps between two lines of progress", at_least=1)
    seed: int = setting(42, "seed of the draft's weights and of the data's order", at_least=0)
    threads: int | None = setting(None, "CPU threads per rank; none: all that there are, divided", at_least=1)
    comm_compress: str = setting("none", "gradient compression method")
    comm_config_json: dict[str, Any] = setting({}, "the method's own settings")  # noqa: RUF009 - a new dict each
    param_compress: str = setting("none", "compression method of the parameter all-gather")
    param_config_json: dict[str, Any] = setting({}, "the parameter method's own settings")  # noqa: RUF009


@dataclass(frozen=True)
class EagleConfig(Config):
    """All settings of one training of a draft."""

    eagle: EagleSettings = field(default_factory=EagleSettings)


def train(settings: EagleSettings) -> Path:
    """The whole story; returns the draft's folder. Raises ValueError for what the user can mend."""
    if settings.target_dir is None or settings.data_path is None:
        raise ValueError("target_dir and data_path: missing; give the target's folder and a file of conversations")
    gradients, parameters = _methods(settings)
    with join(TrainConfig.of(seed=settings.seed, threads=settings.threads)) as ranks:
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[settings.dtype]
        target = Target.from_folder(Path(settings.target_dir), dtype)
        examples, vocabulary = _data(settings, target, ranks)
        draft = load_draft(Path(settings.draft_dir)) if settings.draft_dir else None
        draft = draft or Draft.fresh(target, vocabulary, settings.seed)
        model = EagleTrainingModel(target, draft.float(), settings.steps_ahead, settings.step_decay).to(ranks.device)
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        shard(model, ranks.mesh, policy, target=settings.shard_target)
        handle = cc.attach(model, reduce_scatter=gradients, all_gather=parameters, seed=settings.seed)
        optimizer, schedule = build_optimizer(model.draft, _optim(settings), settings.max_steps)
        progress = _Progress(settings, ranks)
        for step, batch in zip(range(1, settings.max_steps + 1), _batches(examples, settings, ranks), strict=False):
            tokens, mask = (x.to(ranks.device) for x in batch)
            outcome = model(tokens, mask, ranks.sum(model.counts(mask)) / ranks.world)
            outcome.loss.backward()
            taken = take_step(model.draft, optimizer, schedule, settings.max_grad_norm)
            if not taken.taken:
                handle.rollback()
            progress.after(step, outcome, tokens)
        return _save(model, draft, settings, ranks, handle)


def _methods(settings: EagleSettings) -> tuple[cc.Compressor | None, cc.Compressor | None]:
    if settings.shard_target and settings.param_compress != "none":
        raise ValueError("param_compress: would round the frozen target's parameters too; leave it with shard_target")
    return (
        cc.make(settings.comm_compress, settings.comm_config_json),
        cc.make(settings.param_compress, settings.param_config_json),
    )


def _data(settings: EagleSettings, target: Target, ranks: Ranks) -> tuple[list[Example], Vocabulary]:
    """The examples, and the vocabulary: of the draft to go on from, of an earlier run into this folder, or new."""
    assert settings.target_dir is not None, "checked"
    assert settings.data_path is not None, "checked"
    tokenizer = load_chat_tokenizer(Path(settings.target_dir))
    found = load_examples(Path(settings.data_path), tokenizer, min(settings.max_length, target.max_positions))
    path = Path(settings.output_dir) / "vocabulary.safetensors"
    if settings.draft_dir:
        vocabulary = Vocabulary.load(Path(settings.draft_dir) / "model.safetensors", target.vocab_size)
    elif ranks.broadcast(path.exists()):
        vocabulary = Vocabulary.load(path, target.vocab_size)
    else:
        vocabulary, _ = vocabulary_of(found, tokenizer, target.vocab_size, settings.draft_vocab_size)
        if ranks.is_first:
            vocabulary.save(path)
    if ranks.is_first:
        print(f"{len(found.examples):,} conversations; the draft knows {vocabulary.draft_size:,} tokens", flush=True)
        print("\n".join(found.skipped.lines()), end="\n" if found.skipped.total else "", flush=True)
    return found.examples, vocabulary


def _batches(examples: list[Example], settings: EagleSettings, ranks: Ranks) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without end, shuffled anew each pass; every rank its own share."""
    sampler: DistributedSampler[int] = DistributedSampler(
        range(len(examples)),  # type: ignore[arg-type]
        ranks.world,
        ranks.rank,
        seed=settings.seed,
    )
    epoch, waiting = 0, []
    while True:
        sampler.set_epoch(epoch)
        for i in sampler:
            waiting.append(examples[i])
            if len(waiting) == settings.batch_size:
                yield collate(waiting)
                waiting = []
        epoch += 1


def _optim(settings: EagleSettings) -> OptimConfig:
    return OptimConfig(
        learning_rate=settings.learning_rate,
        min_learning_rate_ratio=0.0,
        weight_decay=0.0,
        warmup_steps=round(settings.warmup_ratio * settings.max_steps),
    )


class _Progress:
    """Sums over the ranks since the last line, said by rank 0."""

    def __init__(self, settings: EagleSettings, ranks: Ranks) -> None:
        self.settings, self.ranks = settings, ranks
        self._forget()

    def after(self, step: int, outcome: Outcome, tokens: Tensor) -> None:
        """One step is over; a line when it is due."""
        tally, rows = outcome.tally, outcome.supervised
        self._sums += torch.stack([tally.loss.sum((1, 2)), tally.correct.sum((1, 2)), rows.sum((1, 2))]).double()
        self._tokens += tokens.numel()
        if step % self.settings.log_every and step != self.settings.max_steps:
            return
        loss, correct, count = self.ranks.sum(self._sums)
        if self.ranks.is_first:
            rate = self._tokens * self.ranks.world / (time.perf_counter() - self._start)
            accuracy = " ".join(f"{x:.3f}" for x in (correct / count.clamp(min=1)).tolist())
            mean = float(loss[0] / count[0].clamp(min=1))
            print(f"step {step:>6}  loss 0: {mean:.3f}  accuracy {accuracy}  {rate:,.0f} tokens/s", flush=True)
        self._forget()

    def _forget(self) -> None:
        self._sums = torch.zeros(3, self.settings.steps_ahead, dtype=torch.float64, device=self.ranks.device)
        self._tokens, self._start = 0, time.perf_counter()


def _save(model: EagleTrainingModel, draft: Draft, settings: EagleSettings, ranks: Ranks, handle: cc.Handle) -> Path:
    folder = Path(settings.output_dir) / "draft"
    weights = {name: _whole(tensor) for name, tensor in model.draft.state_dict().items()}
    if ranks.is_first:
        whole = Draft(draft.shape, Vocabulary(draft.d2t.cpu(), draft.t2d.cpu()))
        whole.load_state_dict(weights)
        save_draft(whole, folder, verifier_of(str(settings.target_dir)))
        sent = handle.ledger.totals().sent_bytes
        print(f"draft        {folder}" + (f"\nsent         {sent:,} bytes by rank 0, compressed" if sent else ""))
    dist.barrier()
    return folder


def _whole(tensor: Tensor) -> Tensor:
    """All shards, on the CPU; collective."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()


def main(argv: list[str]) -> int:
    """Train; returns the exit code."""
    with user_errors("fsdp_lab.eagle.train"):
        train(parse_as(EagleConfig, argv, "fsdp_lab.eagle.train").eagle)
    sys.stdout.flush()
    os._exit(0)  # after FSDP2 on gloo a plain exit aborts now and then


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
