"""Who beats whom, found without asking every pair, is who every pair names: to the last digit, ties included."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import Row
from analysis.statistics import beaten as statistics
from analysis.statistics.answers import lines
from analysis.statistics.beaten import Beaten, Numbers, beaten
from analysis.statistics.intervals import CONFIDENCE, t_quantile
from experiments.bench.trainer.report import planted


def by_every_pair(arm: int, costs: Numbers, losses: Numbers) -> Beaten | None:
    rivals = np.flatnonzero(costs <= costs[arm])
    rivals = rivals[rivals != arm]
    worse = losses[arm] - losses[rivals]
    pairs = np.sum(~np.isnan(worse), axis=1)
    mean = np.nansum(worse, axis=1) / np.maximum(pairs, 1)
    beats = (pairs > 0) & ((mean > 0) | ((mean == 0) & (costs[rivals] < costs[arm])))
    if not beats.any():
        return None
    error = np.sqrt(np.nansum((worse - mean[:, None]) ** 2, axis=1) / np.maximum(pairs - 1, 1) / np.maximum(pairs, 1))
    quantile = np.array([t_quantile(CONFIDENCE, n - 1) if n > 1 else 0.0 for n in pairs.tolist()])
    sure = beats & (pairs > 1) & (mean - quantile * error > 0)
    chosen = sure if sure.any() else beats
    return Beaten(int(rivals[np.argmax(np.where(chosen, mean, -np.inf))]), bool(sure.any()))


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("seeds", [1, 2, 3, 20])
@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_the_best_rival_is_that_of_every_pair(missing: float, seeds: int, spread: float) -> None:
    generator = np.random.default_rng(8)
    for arms in (1, 2, 40, 300):
        effect = generator.choice([0.0, 0.01, 0.02, 0.1], (arms, 1))
        losses = 5.0 + generator.normal(0, 0.05, seeds) + effect + generator.normal(0, spread, (arms, seeds))
        losses[generator.random((arms, seeds)) < missing] = np.nan
        costs = generator.choice([1.0, 2.0, 3.0] if arms % 3 else generator.random(arms), arms)
        assert beaten(costs, losses) == [by_every_pair(arm, costs, losses) for arm in range(arms)]


def test_of_equal_rivals_the_first_is_named() -> None:
    losses = np.array([[2.0, 2.5]] * 3 + [[1.0, 1.5]] * 50)
    assert beaten(np.ones(53), losses) == [Beaten(3, True)] * 3 + [None] * 50
    assert beaten(np.arange(53.0), losses)[1] == Beaten(0, False), "as good at a lower cost, and never surely so"


@pytest.mark.parametrize("shape", ["arms", "mixed"])
def test_few_pairs_are_asked(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 arms have 100 million pairs."""
    asked = 0

    def counted(race: statistics._Rivals, arm: int, rivals: list[int]) -> dict[bool, tuple[float, int]]:
        nonlocal asked
        asked += len(rivals)
        return ask(race, arm, rivals)

    ask = statistics._Rivals._ask
    monkeypatch.setattr(statistics._Rivals, "_ask", counted)
    (comparison, *_) = comparisons(list(map(Row, planted(3000, shape))))
    found = lines(comparison)
    assert sum(line.front == "no" for line in found) > 0.5 * len(found)
    assert asked < 0.3 * len(found) ** 2
    before = asked
    assert lines(comparison) is found
    assert asked == before, "a comparison's lines are made once"


def test_lines_of_one_seed_or_none_warn_of_nothing() -> None:
    with np.errstate(all="raise"):
        assert beaten(np.ones(2), np.array([[1.0, np.nan], [np.nan, 2.0]])) == [None, None]
        assert beaten(np.ones(0), np.ones((0, 0))) == []
