"""What a few seeds can tell: intervals, paired differences, "within 1 %", and times to a target.

A run that failed, diverged or is missing is infinitely bad here; nothing is ever dropped. Sources:
docs/comparing/statistics.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.rows.reading import is_number

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
Verdict = Literal["within", "worse", "undecided"]


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation (n - 1) and two-sided 95 % t interval of the mean over ``n`` values.

    One value has no spread; where one is infinite the mean is, and there is no interval: both are None then."""

    n: int
    mean: float
    std: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Paired:
    """How much worse than the baseline, seed by seed: PPL over the baseline's, minus 1 (0.01 is 1 % worse).

    Differences are taken on val_loss, the logarithm of PPL, so ``mean`` is a geometric one (None without a pair) and
    ``std`` is in nats. ``low`` to ``high``: two-sided 95 % interval. ``lower``, ``upper``: one-sided 95 % bounds.
    ``seeds`` are the pairs; ``lost`` those among them where the arm failed or has no run (infinitely bad);
    ``unpaired`` those whose baseline failed, which nothing can be compared with and which are in no figure."""

    n: int
    mean: float | None
    std: float | None = None
    low: float | None = None
    high: float | None = None
    lower: float | None = None
    upper: float | None = None
    seeds: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    unpaired: tuple[int, ...] = ()
    nats: float | None = None  # the mean difference of val_loss

    @property
    def width(self) -> float | None:
        """Width of the two-sided interval; None without an interval."""
        return None if self.low is None or self.high is None else self.high - self.low


def summary(values: Iterable[float | None]) -> Summary:
    """The summary of values over seeds. None, NaN and infinities are failed runs. ValueError for no value at all."""
    numbers = _numbers(values)
    n, mean = len(numbers), statistics.fmean(numbers)
    if n == 1 or math.isinf(mean):
        return Summary(n, mean)
    std = _deviation(numbers, mean)
    half = t_quantile((1 + CONFIDENCE) / 2, n - 1) * std / math.sqrt(n)
    return Summary(n, mean, std, mean - half, mean + half)


def mean(values: Iterable[float | None]) -> float:
    """The mean of their `summary`, where nobody asks for more."""
    return statistics.fmean(_numbers(values))


def _numbers(values: Iterable[float | None]) -> list[float]:
    numbers = [float(v) if is_number(v) else math.inf for v in values]
    if not numbers:
        raise ValueError("nothing to summarise: no values")
    return numbers


def paired(arm: ArmRuns, baseline: ArmRuns, seeds: Iterable[int] | None = None) -> Paired:
    """How much worse the arm is than the baseline, over ``seeds`` or, by default, all of the baseline's seeds."""
    return paired_losses(arm.losses, baseline.losses, seeds)


def paired_losses(
    arm: Mapping[int, float | None], baseline: Mapping[int, float | None], seeds: Iterable[int] | None = None
) -> Paired:
    """`paired` for validation losses (nats a token) by seed. None or not finite: the run failed."""
    asked = sorted(set(baseline if seeds is None else seeds))
    pairs = tuple(seed for seed in asked if is_number(baseline.get(seed)))
    unpaired = tuple(seed for seed in asked if not is_number(baseline.get(seed)))
    lost = tuple(seed for seed in pairs if not is_number(arm.get(seed)))
    n = len(pairs)
    if lost or not pairs:
        return Paired(n, math.inf if lost else None, seeds=pairs, lost=lost, unpaired=unpaired)
    differences = [_loss(arm, seed) - _loss(baseline, seed) for seed in pairs]
    mean = statistics.fmean(differences)
    if n == 1:
        return Paired(n, _relative(mean), seeds=pairs, unpaired=unpaired, nats=mean)
    std = _deviation(differences, mean)
    error = std / math.sqrt(n)
    two_sided = t_quantile((1 + CONFIDENCE) / 2, n - 1) * error
    one_sided = t_quantile(CONFIDENCE, n - 1) * error
    bounds = (mean - two_sided, mean + two_sided, mean - one_sided, mean + one_sided)
    low, high, lower, upper = (_relative(bound) for bound in bounds)
    return Paired(n, _relative(mean), std, low, high, lower, upper, pairs, lost, unpaired, mean)


def within(change: Paired, margin: float) -> Verdict:
    """Is the arm at most ``margin`` (0.01: 1 %) worse than the baseline? A test of non-inferiority.

    "within": the one-sided 95 % upper bound lies below the margin. "worse": the lower bound lies above it, or a run was
    lost. "undecided": neither, or there are fewer than two pairs, or a run of the baseline failed."""
    if change.lost:
        return "worse"
    if change.upper is None or change.lower is None or change.unpaired:
        return "undecided"
    if change.upper < margin:
        return "within"
    return "worse" if change.lower > margin else "undecided"


@dataclass(frozen=True)
class Suspicion:
    """An arm with a lower loss than the baseline, which should be looked into. ``p`` is one-sided, after Holm's
    correction."""

    label: str
    change: Paired
    p: float


def better_than_baseline(comparison: Comparison) -> list[Suspicion]:
    """Arms that reach a lower loss than the baseline beyond chance, most surprising first.

    Compression only takes information away, so this asks for a review (other tokens, other settings, a leak) rather
    than for praise. One-sided paired t tests, corrected by Holm's method for asking about every arm."""
    if comparison.baseline is None:
        return []
    changes = [
        (runs.arm.label, paired(runs, comparison.baseline, _shared(runs, comparison.baseline)))
        for runs in comparison.rivals
    ]
    tested = [(label, change, p) for label, change in changes if (p := p_better(change)) is not None]
    corrected = holm([p for _, _, p in tested])
    suspicions = [Suspicion(label, change, p) for (label, change, _), p in zip(tested, corrected, strict=True)]
    return sorted((s for s in suspicions if s.p < SIGNIFICANCE), key=lambda s: s.p)


def p_better(change: Paired) -> float | None:
    """One-sided p value of "not better than the baseline"; None where there is no spread to judge by."""
    if change.std is None or change.nats is None:
        return None
    if change.std == 0:
        return 0.0 if change.nats < 0 else 1.0
    from scipy.special import stdtr  # Student's t: here and below, as many programs need its names and no number of it

    return float(stdtr(change.n - 1, change.nats / (change.std / math.sqrt(change.n))))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted by Holm's step-down method, in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def time_to_target(rows: Iterable[Mapping[str, Any]], expected: int = 0) -> float:
    """Median seconds to ``target_ppl`` over the runs; one that missed it, or failed, counts as infinite.

    Where there are fewer runs than ``expected``, those missing have missed it, too. ValueError when the runs had no
    target, or not the same."""
    rows = list(rows)
    targets = {row["config"].get("target_ppl") for row in rows}
    if len(targets) != 1 or None in targets:
        asked = ", ".join(sorted(map(str, targets))) or "no runs"
        raise ValueError(f"time to target: the runs need one target_ppl in common, got {asked}")
    times = [row.get("time_to_target_ppl_s") if row.get("status") == "ok" else None for row in rows]
    missing = [math.inf] * (expected - len(times))
    return statistics.median([*(float(t) if is_number(t) else math.inf for t in times), *missing])


def t_quantile(p: float, degrees: int) -> float:
    """The quantile of Student's t distribution: 2.92 for 0.95 and 2 degrees of freedom."""
    return _t_quantile(p, degrees)


@lru_cache(maxsize=4096)
def _t_quantile(p: float, degrees: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, p))


def _shared(runs: ArmRuns, baseline: ArmRuns) -> set[int]:
    """Seeds that both finished: whether the arm is better than chance allows does not depend on the others."""
    mine, its = runs.losses, baseline.losses
    return {seed for seed, loss in mine.items() if loss is not None and its.get(seed) is not None}


def _deviation(values: Sequence[float], mean: float) -> float:
    """Standard deviation (n - 1). `statistics.stdev` is exact, and fifty times slower."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _relative(nats: float) -> float:
    try:
        return math.expm1(nats)
    except OverflowError:
        return math.inf


def _loss(losses: Mapping[int, float | None], seed: int) -> float:
    loss = losses[seed]
    assert loss is not None
    return float(loss)
