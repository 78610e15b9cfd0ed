"""How often a draft is right, by position: the steps of the training-time test over held-out conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fsdp_lab.data.chats.examples import Example
from fsdp_lab.eagle.data.tokens import collate
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel


class PositionScores(NamedTuple):
    """One step of the training-time test over all conversations. Means are over tokens, ``_sd`` over conversations.

    ``accuracy``: how often the draft's first choice is the target's (over the target's whole vocabulary).
    ``conditional``: how often where all steps before were right. ``overlap``: how often sampling accepts a drawn draft.
    """

    tokens: int
    accuracy: float
    accuracy_sd: float
    conditional: float
    overlap: float
    loss: float
    loss_sd: float


@torch.no_grad()
def positions(model: EagleTrainingModel, examples: Sequence[Example], batch_size: int = 8) -> list[PositionScores]:
    """The scores of every step, in order. They are computed on the device where ``model`` is."""
    device = model.target.head.device
    chunks = [examples[i : i + batch_size] for i in range(0, len(examples), batch_size)]
    sums = []
    for chunk in chunks:
        batch = collate(list(chunk)).to(device)
        outcome = model(batch.tokens, batch.loss_mask)
        rows, scores = outcome.supervised, outcome.scores
        right = scores.correct.cumprod(0).bool()  # this step and all before
        judged = torch.cat([rows[:1], rows[1:] & right[:-1]])
        values = [rows, scores.correct, judged, right & rows, scores.overlap, scores.loss]
        sums.append(torch.stack([x.sum(-1).double().cpu() for x in values]))  # [6, K, B]
    whole = torch.cat(sums, -1)
    return [_position(whole[:, k]) for k in range(model.steps)]


def _position(sums: Tensor) -> PositionScores:
    """The scores of one step from the six sums of each of N conversations, ``[6, N]``."""
    rows, correct, judged, right, overlap, loss = sums
    some = rows > 0
    count, total = rows.sum().clamp(min=1), judged.sum().clamp(min=1)
    return PositionScores(
        int(rows.sum()),
        float(correct.sum() / count),
        _sd(correct[some] / rows[some]),
        float(right.sum() / total),
        float(overlap.sum() / count),
        float(loss.sum() / count),
        _sd(loss[some] / rows[some]),
    )


def _sd(values: Tensor) -> float:
    return float(values.std()) if len(values) > 1 else 0.0


def expected_tau(table: Sequence[PositionScores]) -> float:
    """Expected tokens per pass of the target with one draft for each row of ``table``: 1 + the sum of products."""
    tau, chance = 1.0, 1.0
    for row in table:
        chance *= row.conditional
        tau += chance
    return tau


def report(table: Sequence[PositionScores]) -> str:
    """The scores of all positions as a text table."""
    lines = ["position   tokens   accuracy (sd)    conditional   overlap   loss (sd)"]
    lines += [
        f"{k:>8} {row.tokens:>8,}   {row.accuracy:.3f} ({row.accuracy_sd:.3f})    {row.conditional:>11.3f}"
        f"   {row.overlap:>7.3f}   {row.loss:.3f} ({row.loss_sd:.3f})"
        for k, row in enumerate(table)
    ]
    return "\n".join([*lines, f"expected tokens a pass of the target, {len(table)} drafts: {expected_tau(table):.2f}"])
