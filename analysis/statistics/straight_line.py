"""A straight line through points, by least squares, with intervals of its slope and of a point beyond them.

The intervals take the line for true, with normal errors of one spread: they say how well these points place the line,
and nothing about whether it goes on straight. Source: Draper and Smith, Applied Regression Analysis, 3rd edition, 1998,
chapter 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.statistics.intervals import CONFIDENCE, t_quantile

Interval = tuple[float, float, float]  # value, and its 95 % interval from low to high


@dataclass(frozen=True)
class StraightLine:
    """y = ``at`` + ``slope`` (x - ``middle``) through ``n`` points. ``error``: standard deviation around the line;
    ``spread``: sum of (x - middle)^2."""

    n: int
    middle: float
    at: float
    slope: float
    error: float
    spread: float

    def slope_interval(self) -> Interval:
        """The slope with its two-sided 95 % interval."""
        half = self._t * self.error / math.sqrt(self.spread)
        return self.slope, self.slope - half, self.slope + half

    def mean_at(self, x: float) -> Interval:
        """The line at ``x``, with the two-sided 95 % interval of where the line is there."""
        aside = x - self.middle
        half = self._t * self.error * math.sqrt(1 / self.n + aside**2 / self.spread)
        value = self.at + self.slope * aside
        return value, value - half, value + half

    @property
    def _t(self) -> float:
        return t_quantile((1 + CONFIDENCE) / 2, self.n - 2)


def straight_line(points: Sequence[tuple[float, float]]) -> StraightLine:
    """The line through points (x, y). ValueError: fewer than three points, or all at one x."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if len(points) < 3 or len(set(xs)) < 2:
        raise ValueError(f"a line with an interval takes three points at two places; there are {len(points)}")
    middle, at = statistics.fmean(xs), statistics.fmean(ys)
    spread = math.fsum((x - middle) ** 2 for x in xs)
    slope = math.fsum((x - middle) * (y - at) for x, y in points) / spread
    left = math.fsum((y - at - slope * (x - middle)) ** 2 for x, y in points)
    return StraightLine(len(points), middle, at, slope, math.sqrt(left / (len(points) - 2)), spread)
