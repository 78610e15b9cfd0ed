"""How well a measurement tells costs: rank correlation over methods, and power laws asked for methods that they have
not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.costs.screened import Screened

LEAST = 1e-6  # a measure below is counted as this: the logarithm of nothing
DRAWS = 2000  # of the interval


@dataclass(frozen=True)
class Law:
    """log cost = ``at`` + sum of ``powers`` times the logarithms of ``measures``; costs are in nats of loss, as those
    of a lost training do not grow beyond all bounds. ``told``: the cost of each arm by a law that was not fitted to its
    method."""

    measures: tuple[str, ...]
    at: float
    powers: tuple[float, ...]
    told: Sequence[tuple[Screened, float]]

    @property
    def factors(self) -> list[float]:
        """By which factor each told cost is off, at least 1."""
        return [max(told / arm.nats, arm.nats / told) for arm, told in self.told]


def correlation(arms: Sequence[Screened], measure: str) -> float:
    """Spearman's rank correlation of the cost with a measure; not a number where all are alike."""
    costs, values = (_ranks(those) for those in ([a.nats for a in arms], [a.measures[measure] for a in arms]))
    spread = float(np.std(costs) * np.std(values))
    return float(np.mean((costs - costs.mean()) * (values - values.mean()))) / spread if spread else math.nan


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Ranks from 0, the mean rank where values are equal."""
    _, places, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    ranks: NDArray[np.float64] = middle[places]
    return ranks


def interval(arms: Sequence[Screened], measure: str) -> tuple[float, float]:
    """The 95 % interval of `correlation`, over methods drawn again with all their arms; the same every time."""
    by_method = [[arm for arm in arms if arm.method == name] for name in dict.fromkeys(arm.method for arm in arms)]
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS):
        picked = random.integers(len(by_method), size=len(by_method))
        value = correlation([arm for number in picked for arm in by_method[number]], measure)
        drawn += [] if math.isnan(value) else [value]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def law(arms: Sequence[Screened], measures: tuple[str, ...]) -> Law:
    """The law of these measures over the arms, all of which cost something."""
    at, *powers = _fitted(arms, measures)
    told = []
    for method in dict.fromkeys(arm.method for arm in arms):
        others = [arm for arm in arms if arm.method != method]
        weights = _fitted(others, measures)
        told += [(arm, math.exp(float(_seen(arm, measures) @ weights))) for arm in arms if arm.method == method]
    return Law(measures, float(at), tuple(map(float, powers)), told)


def _fitted(arms: Sequence[Screened], measures: tuple[str, ...]) -> NDArray[np.float64]:
    seen = np.stack([_seen(arm, measures) for arm in arms])
    weights, *_ = np.linalg.lstsq(seen, np.log([arm.nats for arm in arms]), rcond=None)
    return np.asarray(weights, dtype=np.float64)


def _seen(arm: Screened, measures: tuple[str, ...]) -> NDArray[np.float64]:
    return np.array([1.0, *(math.log(max(arm.measures[name], LEAST)) for name in measures)])
