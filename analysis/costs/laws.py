"""How well a measurement predicts costs: rank correlation over methods, and power laws that are asked for methods which
they were not fitted to."""

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
    of a lost training do not grow beyond all bounds. ``predicted``: each arm with its cost, in nats, by a law that
    was not fitted to its method."""

    measures: tuple[str, ...]
    at: float
    powers: tuple[float, ...]
    predicted: Sequence[tuple[Screened, float]]

    @property
    def factors(self) -> list[float]:
        """By which factor each predicted cost is off, at least 1."""
        return [max(nats / arm.nats, arm.nats / nats) for arm, nats in self.predicted]


def correlation(arms: Sequence[Screened], measure: str) -> float:
    """Spearman's rank correlation of the cost with a measure; not a number where all are alike."""
    from scipy.stats import rankdata  # most of the program's imports, which --help need not wait for

    costs, values = rankdata([arm.nats for arm in arms]), rankdata([arm.measures[measure] for arm in arms])
    if not (np.ptp(costs) and np.ptp(values)):
        return math.nan
    return float(np.corrcoef(costs, values)[0, 1])


def interval(arms: Sequence[Screened], measure: str) -> tuple[float, float]:
    """The 95 % interval of `correlation`, over methods drawn again with all their arms; the same every time.

    Not numbers where every draw has costs or measures that are all alike: of one arm, for example."""
    by_method = [[arm for arm in arms if arm.method == name] for name in dict.fromkeys(arm.method for arm in arms)]
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS):
        picked = random.integers(len(by_method), size=len(by_method))
        value = correlation([arm for number in picked for arm in by_method[number]], measure)
        drawn += [] if math.isnan(value) else [value]
    low, high = np.quantile(drawn, [0.025, 0.975]) if drawn else (math.nan, math.nan)
    return float(low), float(high)


def law(arms: Sequence[Screened], measures: tuple[str, ...]) -> Law:
    """The law of these measures over the arms, all of which cost something."""
    at, *powers = _fitted(arms, measures)
    predicted = []
    for method in dict.fromkeys(arm.method for arm in arms):
        others = [arm for arm in arms if arm.method != method]
        weights = _fitted(others, measures)
        of_it = [arm for arm in arms if arm.method == method]
        predicted += [(arm, math.exp(float(_terms(arm, measures) @ weights))) for arm in of_it]
    return Law(measures, float(at), tuple(map(float, powers)), predicted)


def _fitted(arms: Sequence[Screened], measures: tuple[str, ...]) -> NDArray[np.float64]:
    terms = np.stack([_terms(arm, measures) for arm in arms])
    weights, *_ = np.linalg.lstsq(terms, np.log([arm.nats for arm in arms]), rcond=None)
    return np.asarray(weights, dtype=np.float64)


def _terms(arm: Screened, measures: tuple[str, ...]) -> NDArray[np.float64]:
    """1, and the logarithm of each measure: what the weights of a law are multiplied with."""
    return np.array([1.0, *(math.log(max(arm.measures[name], LEAST)) for name in measures)])
