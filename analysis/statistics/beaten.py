"""Which arm beats which: less loss at no higher cost, told by the seeds that both have.

Every pair of arms is a question, and a comparison may have ten thousand arms. But only one rival of an arm is wanted,
the one that beats it by most, so arms are asked in the order in which they can:

    cost                arms that cost no more are the rivals: go through arms by rising cost, and keep those gone by
    lowest loss first   a rival's difference to the arm is at most `high` of the arm less `low` of the rival; as soon
                        as that falls below the best found, no later rival can be better

So a pair that is computed is computed as `intervals.paired` does, and most pairs are not.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.statistics.intervals import CONFIDENCE, t_quantile

Numbers = npt.NDArray[np.float64]
_FIRST, _GROWTH = 32, 4  # rivals that are asked at once, and how much more each time none of them is sure
_ROUNDING = 1e-9  # of a loss: far more than means of seeds are rounded by


@dataclass(frozen=True)
class Beaten:
    """By which arm, counted from 0, an arm is beaten; ``is_sure``: beyond chance (one-sided, 95 %)."""

    by: int
    is_sure: bool


def beaten(costs: Numbers, losses: Numbers) -> list[Beaten | None]:
    """For each arm the one that beats it by most, of those that do so beyond chance where there are such.

    ``costs`` [arms] are finite. ``losses`` [arms, seeds] are nats a token, NaN where an arm has no run of a seed. An
    arm is beaten by a lower mean loss over the seeds that both have, at no higher cost, or by the same loss at a lower
    cost. Of rivals that are equally good the first is named. None: nothing beats the arm."""
    rivals = _Rivals(costs, losses)
    found: list[Beaten | None] = [None] * len(costs)
    for _, alike in itertools.groupby(np.argsort(costs, kind="stable").tolist(), key=lambda arm: costs[arm]):
        arms = list(alike)
        for arm in arms:
            rivals.enter(arm)
        for arm in arms:
            found[arm] = rivals.best_against(arm)
    return found


class _Rivals:
    """The arms that cost no more than those that are asked about, lowest loss first."""

    def __init__(self, costs: Numbers, losses: Numbers) -> None:
        self._costs = costs
        self._there = ~np.isnan(losses)
        self._losses = np.where(self._there, losses, 0.0)
        self._low, self._high = _bounds(self._losses, self._there)
        self._by_loss: list[tuple[float, int]] = []
        self._quantile = np.full(losses.shape[1] + 1, np.inf)  # of Student's t, by the number of pairs
        for pairs in range(2, len(self._quantile)):
            self._quantile[pairs] = t_quantile(CONFIDENCE, pairs - 1)

    def enter(self, arm: int) -> None:
        """From now on the arm is a rival of those asked about."""
        insort(self._by_loss, (float(self._low[arm]), arm))

    def best_against(self, arm: int) -> Beaten | None:
        """The rival that beats the arm by most."""
        best: dict[bool, tuple[float, int]] = {}  # by whether it is sure: mean difference, and minus the rival
        start, size = 0, _FIRST
        while start < len(self._by_loss):
            needed = best[True][0] if True in best else 0.0
            if self._high[arm] - self._by_loss[start][0] < needed:
                break
            rivals = sorted(rival for _, rival in self._by_loss[start : start + size] if rival != arm)
            for is_sure, found in self._ask(arm, rivals).items():
                best[is_sure] = max(best.get(is_sure, found), found)
            start, size = start + size, size * _GROWTH
        is_sure = True in best
        return Beaten(-best[is_sure][1], is_sure) if best else None

    def _ask(self, arm: int, rivals: Sequence[int]) -> dict[bool, tuple[float, int]]:
        """The best of these rivals, with what the arm loses to it, of those that are sure and of all that beat it."""
        those = np.array(rivals, dtype=np.intp)
        both = self._there[arm] & self._there[those]
        worse = np.where(both, self._losses[arm] - self._losses[those], 0.0)  # nats, a rival a row
        pairs = np.sum(both, axis=1)
        mean = np.sum(worse, axis=1) / np.maximum(pairs, 1)
        beats = (pairs > 0) & ((mean > 0) | ((mean == 0) & (self._costs[those] < self._costs[arm])))
        if not beats.any():
            return {}
        squares = np.sum(np.where(both, (worse - mean[:, None]) ** 2, 0.0), axis=1)
        error = np.sqrt(squares / np.maximum(pairs - 1, 1) / np.maximum(pairs, 1))
        with np.errstate(invalid="ignore"):  # of one pair, whose infinite bound times no spread is no number
            is_sure = beats & (pairs > 1) & (mean - self._quantile[pairs] * error > 0)
        best = {}
        for kind, chosen in ((False, beats), (True, is_sure)):
            if chosen.any():
                place = int(np.argmax(np.where(chosen, mean, -np.inf)))
                best[kind] = float(mean[place]), -int(those[place])
        return best


def _bounds(losses: Numbers, there: npt.NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """``low`` and ``high`` [arms]: a mean difference of two arms is at most ``high`` of one less ``low`` of the other.

    Where all arms have the same seeds both are the mean loss. Otherwise a mean over whatever seeds two arms share lies
    between the arm's lowest and its highest loss, each less what its seed adds to all arms alike."""
    slack = _ROUNDING * (1.0 + float(np.max(np.abs(losses), initial=0.0)))
    if (there == there[:1]).all():
        means = losses.sum(axis=1) / np.maximum(there.sum(axis=1), 1)
        return means - slack, means + slack
    seed = losses.sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    low = np.where(there, losses - seed, np.inf).min(axis=1, initial=np.inf)
    high = np.where(there, losses - seed, -np.inf).max(axis=1, initial=-np.inf)
    return low - slack, high + slack
