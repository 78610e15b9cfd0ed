"""What compression costs a draft: acceptance length against bytes, arm by arm.

The acceptance length tau is how many tokens a pass of the target gives; more is better. A run that failed, diverged or
is missing is infinitely bad: it makes its arm's mean minus infinity, and is in no interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from analysis.rows.comparing.comparisons import ArmRuns, Comparison, failed
from analysis.statistics import measures
from analysis.statistics.intervals import Summary, summary


@dataclass(frozen=True)
class Change:
    """Acceptance length less the baseline's of the same seed: mean and two-sided 95 % t interval over the pairs.

    ``seeds`` are the pairs; ``lost`` those among them where the arm failed or has no run; ``unpaired`` seeds whose
    baseline failed, so that there is nothing to compare with. ``mean`` is None without a pair."""

    mean: float | None
    low: float | None
    high: float | None
    seeds: tuple[int, ...]
    lost: tuple[int, ...]
    unpaired: tuple[int, ...]


@dataclass(frozen=True)
class Line:
    """One arm of the table. Bits a parameter and step are over the runs that ended well, tau is over all. None:
    unknown."""

    runs: ArmRuns
    bits_gradients: float | None
    bits_parameters: float | None
    bits: float | None
    ratio_fp32: float | None
    ratio_bf16: float | None
    tau: Summary
    change: Change | None

    @property
    def label(self) -> str:
        """The label of the arm that the line is about."""
        return self.runs.arm.label


def lines(comparison: Comparison) -> list[Line]:
    """A line for every arm: the baseline first, the others by falling bits, arms whose bits are unknown last."""
    table = [_line(runs, comparison.baseline) for runs in comparison.arms]
    return sorted(table, key=lambda line: (line.change is not None, line.bits is None, -(line.bits or 0.0)))


def taus(runs: ArmRuns) -> dict[int, float | None]:
    """Acceptance length by seed; None for a run that failed."""
    return {seed: None if failed(row) else float(row["tau"]) for seed, row in runs.runs.items()}


def change(runs: ArmRuns, baseline: ArmRuns) -> Change:
    """How the arm's tau differs from the baseline's, over the baseline's seeds."""
    mine, base = taus(runs), taus(baseline)
    known = {seed: tau for seed, tau in base.items() if tau is not None}
    unpaired = tuple(seed for seed in base if seed not in known)
    losses = {seed: None if (own := mine.get(seed)) is None else tau - own for seed, tau in known.items()}
    lost = tuple(seed for seed, loss in losses.items() if loss is None)
    if not losses:
        return Change(None, None, None, (), (), unpaired)
    against = _negative(summary(losses.values()))
    return Change(against.mean, against.low, against.high, tuple(losses), lost, unpaired)


def _line(runs: ArmRuns, baseline: ArmRuns | None) -> Line:
    mean = partial(measures.mean_over_seeds, runs)
    return Line(
        runs,
        bits_gradients=mean(lambda row: measures.bits_per_parameter(row, "reduce_scatter")),
        bits_parameters=mean(lambda row: measures.bits_per_parameter(row, "all_gather")),
        bits=mean(measures.bits_per_parameter),
        ratio_fp32=mean(measures.ratio_vs_fp32),
        ratio_bf16=mean(measures.ratio_vs_bf16),
        tau=_negative(summary(None if tau is None else -tau for tau in taus(runs).values())),
        change=None if baseline is None or runs is baseline else change(runs, baseline),
    )


def _negative(values: Summary) -> Summary:
    """The summary of the negated values: `summary` takes a failed run for plus infinity, and here less is worse."""
    low, high = (None if bound is None else 0.0 - bound for bound in (values.high, values.low))
    return replace(values, mean=0.0 - values.mean, low=low, high=high)


def is_lost(line: Line) -> bool:
    """Did a run of the arm fail, or is one missing?"""
    return math.isinf(line.tau.mean) or bool(line.change and line.change.lost)
