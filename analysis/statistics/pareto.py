"""Quality against compression, arm by arm, and the front of those that nothing beats in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.rows.comparing.strengths import Strengths, strengths
from analysis.statistics import measures
from analysis.statistics.answers import MARGIN
from analysis.statistics.intervals import Verdict, paired, within

Traffic = Literal["all", "gradients", "parameters"]
Axis = Literal["all", "gradients", "parameters", "bits"]
"""What a figure's compression is of; ``bits``: a point's ``ratio`` is 1 over its bits a parameter and step."""


@dataclass(frozen=True)
class Point:
    """One arm in the figure.

    ``ratio`` is None when no run of it recorded its bytes. ``change`` of 0.01 is 1 % worse; it is infinite when some
    run failed, diverged or is missing, as ``lost`` of ``pairs`` did. ``low`` to ``high`` is its interval, None with one
    pair. ``strength_of`` is the label of the arm that this one is another strength of (`rows.comparing.strengths`; its
    own label for that arm itself), and ``short`` what to call it beside that arm."""

    label: str
    family: str
    ratio: float | None
    change: float
    low: float | None
    high: float | None
    verdict: Verdict
    pairs: int
    lost: int
    is_baseline: bool = False
    strength_of: str | None = None
    short: str | None = None


def points(comparison: Comparison, traffic: Traffic = "all", against: str = "fp32") -> list[Point]:
    """A point for each arm of the comparison. ``against``: fp32 or bf16.

    ``traffic`` of "gradients" or "parameters" takes the ratio of the reduce-scatter or the all-gather, and only arms
    that leave the other direction as it is, because the perplexity of other arms is not due to this direction alone.
    "all": where some arms compress both, those that compress one direction alone are left out. ValueError when there is
    no baseline, nothing to compare, or no arm with both quality and bytes: one rank sends none, and a run that failed
    at once counted none."""
    baseline = comparison.baseline
    if baseline is None:
        there = ", ".join(runs.arm.label for runs in comparison.arms)
        raise ValueError(f"quality against compression needs a baseline; {comparison.setting.label} has {there}")
    chosen = [baseline, *(runs for runs in _chosen(comparison, traffic) if runs is not baseline)]
    if not any(runs.arm.sends_less for runs in chosen[1:]):
        what = {"all": "anything", "gradients": "gradients alone", "parameters": "parameters alone"}[traffic]
        raise ValueError(f"quality against compression: no arm of {comparison.setting.label} compresses {what}")
    by_arm = {arm: one for one in strengths([runs.arm for runs in chosen]) for arm in one.arms}
    known = [_point(runs, baseline, traffic, against, by_arm.get(runs.arm)) for runs in chosen]
    placed = [point for point in known if point is not None]
    if not any(point.ratio is not None for point in placed):
        raise ValueError(f"quality against compression: no arm of {comparison.setting.label} has both")
    return placed


def _chosen(comparison: Comparison, traffic: Traffic) -> list[ArmRuns]:
    only = [runs for runs in comparison.arms if not (runs.arm.compresses_activations or runs.arm.takes_local_steps)]
    if traffic == "gradients":
        return [runs for runs in only if not runs.arm.compresses_parameters]
    if traffic == "parameters":
        return [runs for runs in only if not runs.arm.compresses_gradients]
    alike = [runs for runs in comparison.arms if runs.arm.compresses_gradients == runs.arm.compresses_parameters]
    return alike if any(runs.arm.compresses_gradients for runs in alike) else comparison.arms


def _point(runs: ArmRuns, baseline: ArmRuns, traffic: Traffic, against: str, alike: Strengths | None) -> Point | None:
    """The arm's point; None when the baseline has no finished run, because then nothing is known of any arm."""
    direction = {"gradients": "reduce_scatter", "parameters": "all_gather"}.get(traffic)
    change = paired(runs, baseline)
    if change.mean is None:
        return None
    ratio = measures.over_seeds(runs, lambda row: measures.ratio(row, against, direction))
    return Point(
        runs.arm.label,
        runs.arm.family,
        None if ratio is None else ratio.mean,
        change.mean,
        change.low,
        change.high,
        within(change, MARGIN),
        change.n,
        len(change.lost),
        runs is baseline,
        alike.head.label if alike else None,
        alike.short(runs.arm) if alike else None,
    )


def front(candidates: Sequence[Point]) -> list[Point]:
    """The points that no other point beats in both quality and ratio, by rising ratio."""
    best: list[Point] = []
    known = [p for p in candidates if p.ratio is not None and math.isfinite(p.change)]
    for point in sorted(known, key=lambda p: (-(p.ratio or 0), p.change)):
        if not best or point.change < best[-1].change:
            best.append(point)
    return best[::-1]
