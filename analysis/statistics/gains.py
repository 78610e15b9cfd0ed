"""Measures of which more is better: the acceptance length of a draft, a model's top-1 accuracy.

A run that failed, diverged or is missing is infinitely bad: it makes its arm's mean minus infinity, and is in no
interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from analysis.rows.comparing.comparisons import ArmRuns, failed
from analysis.statistics.intervals import Summary, summary


@dataclass(frozen=True)
class Change:
    """A measure less the baseline's of the same seed: mean and two-sided 95 % t interval over the pairs.

    ``seeds`` are the pairs; ``lost`` those among them where the arm failed or has no run; ``unpaired`` seeds whose
    baseline failed, so that there is nothing to compare with. ``mean`` is None without a pair."""

    mean: float | None
    low: float | None
    high: float | None
    seeds: tuple[int, ...]
    lost: tuple[int, ...]
    unpaired: tuple[int, ...]


def by_seed(runs: ArmRuns, column: str) -> dict[int, float | None]:
    """A column of the arm's rows by seed; None for a run that failed."""
    return {seed: None if failed(row) else float(row[column]) for seed, row in runs.runs.items()}


def over_seeds(values: Iterable[float | None]) -> Summary:
    """The summary of such values; None is a failed run."""
    return _negative(summary(None if value is None else -value for value in values))


def change(runs: Mapping[int, float | None], baseline: Mapping[int, float | None]) -> Change:
    """How values by seed differ from the baseline's, over the baseline's seeds. None: the run failed."""
    known = {seed: value for seed, value in baseline.items() if value is not None}
    unpaired = tuple(seed for seed in baseline if seed not in known)
    gains = {seed: None if (own := runs.get(seed)) is None else own - value for seed, value in known.items()}
    lost = tuple(seed for seed, gain in gains.items() if gain is None)
    if not gains:
        return Change(None, None, None, (), (), unpaired)
    against = over_seeds(gains.values())
    return Change(against.mean, against.low, against.high, tuple(gains), lost, unpaired)


def _negative(values: Summary) -> Summary:
    """The summary of the negated values: `summary` takes a failed run for plus infinity, and here less is worse."""
    low, high = (None if bound is None else 0.0 - bound for bound in (values.high, values.low))
    return replace(values, mean=0.0 - values.mean, low=low, high=high)
