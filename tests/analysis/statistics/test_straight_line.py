"""The line is scipy's, its intervals those of scipy's standard errors; too few points are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.straight_line import straight_line


@pytest.mark.parametrize("count", [3, 9, 40])
def test_line_and_intervals_are_those_of_scipy(count: int) -> None:
    random = np.random.default_rng(count)
    x = random.normal(size=count)
    y = 3.0 - 0.7 * x + 0.2 * random.normal(size=count)
    found, oracle = straight_line(list(zip(x.tolist(), y.tolist(), strict=True))), stats.linregress(x, y)
    t = stats.t.ppf(0.975, count - 2)
    half = t * oracle.stderr
    assert found.slope_interval() == pytest.approx((oracle.slope, oracle.slope - half, oracle.slope + half))
    at_zero = t * oracle.intercept_stderr
    expected = (oracle.intercept, oracle.intercept - at_zero, oracle.intercept + at_zero)
    assert found.mean_at(0.0) == pytest.approx(expected)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    random, hits = np.random.default_rng(5), 0
    for _ in range(1000):
        x = np.repeat([0.0, 1.0, 2.0], 3)
        _, low, high = straight_line(
            list(zip(x.tolist(), (2 * x + random.normal(size=9)).tolist(), strict=True))
        ).mean_at(6.0)
        hits += low < 12.0 < high
    assert hits / 1000 == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize("points", [[], [(0.0, 1.0), (1.0, 1.0)], [(2.0, 1.0)] * 5])
def test_too_few_points_are_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="three points at two places"):
        straight_line(points)


def test_points_on_a_line_leave_no_doubt() -> None:
    value, low, high = straight_line([(0.0, 1.0), (1.0, 3.0), (3.0, 7.0)]).mean_at(10.0)
    assert (value, low, high) == pytest.approx((21.0, 21.0, 21.0))
    assert math.isfinite(low)
