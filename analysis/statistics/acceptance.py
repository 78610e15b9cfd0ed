"""What compression costs a draft: acceptance length against bytes, arm by arm.

The acceptance length tau is how many tokens a pass of the target gives; more is better (`gains`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.statistics import gains, measures
from analysis.statistics.intervals import Summary


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
    change: gains.Change | None

    @property
    def label(self) -> str:
        """The label of the arm that the line is about."""
        return self.runs.arm.label


def lines(comparison: Comparison) -> list[Line]:
    """A line for every arm: the baseline first, the others by falling bits, arms whose bits are unknown last."""
    table = [_line(runs, comparison.baseline) for runs in comparison.arms]
    return sorted(table, key=lambda line: (line.change is not None, line.bits is None, -(line.bits or 0.0)))


def _line(runs: ArmRuns, baseline: ArmRuns | None) -> Line:
    mean, taus = partial(measures.mean_over_seeds, runs), gains.by_seed(runs, "tau")
    return Line(
        runs,
        bits_gradients=mean(lambda row: measures.bits_per_parameter(row, "reduce_scatter")),
        bits_parameters=mean(lambda row: measures.bits_per_parameter(row, "all_gather")),
        bits=mean(measures.bits_per_parameter),
        ratio_fp32=mean(measures.ratio_vs_fp32),
        ratio_bf16=mean(measures.ratio_vs_bf16),
        tau=gains.over_seeds(taus.values()),
        change=None if baseline is None or runs is baseline else gains.change(taus, gains.by_seed(baseline, "tau")),
    )


def is_lost(line: Line) -> bool:
    """Did a run of the arm fail, or is one missing?"""
    return math.isinf(line.tau.mean) or bool(line.change and line.change.lost)
