"""What an entry's rows say: is the target reached beyond chance, and how many times as fast as the baselines?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from analysis.statistics.intervals import CONFIDENCE, Summary, p_better, paired_losses, summary, t_quantile
from experiments.speedrun.task import BF16, ENTRY, NONE, SIGNIFICANCE, Task

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Faster:
    """How many times as fast as a baseline: the ratio of the geometric means of the times, with its two-sided 95 %
    interval (None where neither arm has two runs)."""

    times: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ArmScore:
    """One arm: ``seconds`` of its optimizer steps and ``loss`` (nats a token) over its runs, ``p`` of a mean loss that
    is not below the target (one-sided t test; None: one run), ``bytes_a_step`` that a rank sends."""

    seconds: Summary
    loss: Summary
    p: float | None
    bytes_a_step: float
    steps: int


@dataclass(frozen=True)
class Score:
    """All arms, and the entry against both baselines."""

    arms: Mapping[str, ArmScore]
    faster: Mapping[str, Faster]

    @property
    def reached(self) -> bool:
        """Is the entry's mean loss below the target beyond chance?"""
        p = self.arms[ENTRY].p
        return p is not None and p < SIGNIFICANCE

    def plain(self) -> dict[str, Any]:
        """The score as JSON holds it; an infinite mean (a failed run) is null."""
        plain: dict[str, Any] = _plain({**asdict(self), "reached": self.reached})
        return plain


def score(task: Task, rows: Mapping[str, Sequence[Row]]) -> Score:
    """The score of the rows of each arm. ValueError: an arm has none, or a run that did not end well."""
    for arm in (ENTRY, NONE, BF16):
        if not rows.get(arm):
            raise ValueError(f"there is no run of {arm}")
        if bad := [row["run_name"] for row in rows[arm] if row["status"] != "ok" or not row.get("train_time_s")]:
            raise ValueError(f"{', '.join(map(str, bad))} did not end well, so nothing follows from it")
    arms = {arm: _arm(task, rows[arm]) for arm in (ENTRY, NONE, BF16)}
    times = {arm: [float(row["train_time_s"]) for row in rows[arm]] for arm in arms}
    return Score(arms, {arm: faster(times[ENTRY], times[arm]) for arm in (NONE, BF16)})


def _arm(task: Task, rows: Sequence[Row]) -> ArmScore:
    losses = {number: row["val_loss"] for number, row in enumerate(rows)}
    change = paired_losses(losses, dict.fromkeys(losses, task.target))
    return ArmScore(
        summary(row["train_time_s"] for row in rows),
        summary(losses.values()),
        p_better(change),
        statistics.fmean(row["bytes_compressed_total"] / row["steps"] for row in rows),
        rows[0]["steps"],
    )


def faster(own: Sequence[float], other: Sequence[float]) -> Faster:
    """``other`` times over ``own``. The interval is Student's, of two independent groups whose logarithms vary alike:
    a baseline may have a single run, and all runs are on one machine within the hour."""
    groups = [[math.log(time) for time in times] for times in (own, other)]
    means = [statistics.fmean(group) for group in groups]
    ratio = means[1] - means[0]
    degrees = sum(len(group) - 1 for group in groups)
    if degrees == 0:
        return Faster(math.exp(ratio), None, None)
    squares = sum((value - mean) ** 2 for group, mean in zip(groups, means, strict=True) for value in group)
    error = math.sqrt(squares / degrees * sum(1 / len(group) for group in groups))
    half = t_quantile((1 + CONFIDENCE) / 2, degrees) * error
    return Faster(math.exp(ratio), math.exp(ratio - half), math.exp(ratio + half))


def sentences(score_of: Score, task: Task) -> list[str]:
    """The score in sentences, for who ran it."""
    own = score_of.arms[ENTRY]
    p = "unknown" if own.p is None else f"{own.p:.2g}"
    lines = [
        f"loss       {own.loss.mean:.4f} nats a token over {own.loss.n} runs; the target is {task.target:g}: "
        f"p = {p}, {'reached' if score_of.reached else f'NOT reached (wants p < {SIGNIFICANCE:g})'}",
        f"time       {own.seconds.mean:.1f} s of training, {own.steps} steps, {own.bytes_a_step / 1e6:.3g} MB a step",
    ]
    for arm, ratio in score_of.faster.items():
        between = "" if ratio.low is None else f" [{ratio.low:.2f}, {ratio.high:.2f}]"
        lines.append(
            f"faster     {ratio.times:.2f} times as fast as {arm}{between}, which took "
            f"{score_of.arms[arm].seconds.mean:.1f} s"
        )
    return lines


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
