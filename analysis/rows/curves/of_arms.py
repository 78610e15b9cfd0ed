"""Training curves of arms: how a quantity went over training, as the mean and range of an arm's seeds."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import ArmRuns, Comparison, failed
from analysis.rows.curves.points import NOTHING, Curve, curves_of

Along = Literal["step", "tokens", "train_seconds"]
Values = dict[int, float]  # by step


@dataclass(frozen=True)
class TrainingCurve:
    """A quantity of one arm at the steps that all its seeds have, first step first; lists of equal length.

    ``x``: steps, tokens or seconds (mean over the seeds) at ``steps``. ``low``, ``high``: least and greatest seed.
    ``ended``: how many of its seeds failed or diverged, which is why the curve may end early.
    """

    arm: Arm
    steps: list[int]
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    by_seed: dict[int, list[float]]
    ended: int = 0

    @property
    def seeds(self) -> int:
        """How many seeds the curve is over."""
        return len(self.by_seed)


@dataclass(frozen=True)
class TrainingCurves:
    """The curves of a comparison's arms. ``left_out``: one line of text for each run without a usable curve."""

    curves: list[TrainingCurve] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def training_curves(comparison: Comparison, quantity: str, along: Along = "step", smooth: int = 1) -> TrainingCurves:
    """The training curve of every arm whose curve files have ``quantity``.

    ``along`` is what the horizontal axis counts. ``smooth``, an odd number, replaces each value of a seed by the mean
    of so many neighbours, itself in the middle (fewer at both ends). ValueError when ``smooth`` is not odd, or when no
    curve has the quantity (and ``along``)."""
    if smooth < 1 or smooth % 2 == 0:
        raise ValueError(f"smooth: got {smooth}, wants an odd number of points")
    result = TrainingCurves()
    for runs in comparison.arms:
        by_seed: dict[int, Curve] = {}
        ended = 0
        for seed, (points, why) in curves_of(runs).items():
            row = runs.runs[seed]
            result.left_out.extend(f"{row.get('run_name')}: {text}" for text in why)
            if _finite(points, quantity):
                by_seed[seed] = points
                ended += failed(row)
        curve = _curve(runs, by_seed, quantity, along, smooth, ended) if by_seed else None
        if curve is not None:
            result.curves.append(curve)
    if not result.curves:
        advice = "; ".join(result.left_out[:3]) or "the runs did not record it"
        what = quantity if along == "step" else f"{quantity} and {along}"
        raise ValueError(f"no curve with {what} in the comparison ({comparison.setting.label}): {advice}")
    return result


def _finite(curve: Curve, quantity: str) -> Values:
    """The values by step, up to the first that is not finite: what a diverged run did next says nothing."""
    points = curve.get(quantity, NOTHING)
    return {int(step): value for step, value in itertools.takewhile(lambda point: not math.isnan(point[1]), points)}


def _curve(
    runs: ArmRuns, by_seed: Mapping[int, Curve], quantity: str, along: Along, smooth: int, ended: int
) -> TrainingCurve | None:
    """The curve over all seeds; None when no step that they share has a known place on the axis.

    Runs of virtual ranks, for example, have no seconds."""
    values = {seed: _finite(curve, quantity) for seed, curve in by_seed.items()}
    shared = sorted(set.intersection(*(set(by_step) for by_step in values.values())))
    places = {float(step): float(step) for step in shared} if along == "step" else _places(by_seed, along)
    x = {step: places[step] for step in shared if step in places}
    if not x:
        return None
    smoothed = {seed: _smooth([by_step[step] for step in x], smooth) for seed, by_step in values.items()}
    return _over_seeds(runs.arm, list(x), list(x.values()), smoothed, ended)


def above(curve: TrainingCurve, base: TrainingCurve) -> TrainingCurve | None:
    """How far ``curve`` is above ``base``, seed by seed at the steps that both have; None when they share none."""
    seeds = [seed for seed in curve.by_seed if seed in base.by_seed]
    theirs = {step: place for place, step in enumerate(base.steps)}
    places = [(place, theirs[step]) for place, step in enumerate(curve.steps) if step in theirs]
    if not seeds or not places:
        return None
    by_seed = {seed: [curve.by_seed[seed][i] - base.by_seed[seed][j] for i, j in places] for seed in seeds}
    steps, x = [curve.steps[i] for i, _ in places], [curve.x[i] for i, _ in places]
    return _over_seeds(curve.arm, steps, x, by_seed, curve.ended)


def _over_seeds(
    arm: Arm, steps: list[int], x: list[float], by_seed: dict[int, list[float]], ended: int
) -> TrainingCurve:
    across = list(zip(*by_seed.values(), strict=True))
    mean, low, high = ([float(of(at_step)) for at_step in across] for of in (statistics.fmean, min, max))
    return TrainingCurve(arm, steps, x, mean, low, high, by_seed, ended)


def _places(by_seed: Mapping[int, Curve], along: Along) -> dict[float, float]:
    """Where steps lie on the axis: the mean over the seeds that recorded it; steps where none did are left out."""
    known: dict[float, list[float]] = {}
    for curve in by_seed.values():
        for step, value in curve.get(along, NOTHING).known:
            known.setdefault(step, []).append(value)
    return {step: statistics.fmean(at_step) for step, at_step in known.items()}


def _smooth(values: list[float], points: int) -> list[float]:
    half = points // 2
    return [statistics.fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
