"""Are there enough seeds, are they those of the baseline, and is none of them missing or run until it pleased?"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.checks.comparing.wording import arms_of, finding, labels, listed, numbers
from analysis.checks.finding import Finding
from analysis.rows.comparing.comparisons import Comparison, failed
from analysis.rows.quality import loss_of, quality_of

ENOUGH_SEEDS = 3


def one_seed(comparison: Comparison) -> Iterator[Finding]:
    """One seed says nothing about the next."""
    arms = [runs for runs in comparison.arms if len(runs.runs) == 1]
    if arms:
        what = f"one seed, so no interval: {labels(arms, comparison)}"
        advice = f"run {ENOUGH_SEEDS} seeds or more"
        yield finding("error", one_seed, comparison, what, advice, "quality", arms_of(arms))


def few_seeds(comparison: Comparison) -> Iterator[Finding]:
    """With two seeds the 95 % interval reaches 12.7 standard errors to each side of the mean, with three 4.3."""
    arms = [runs for runs in comparison.arms if 1 < len(runs.runs) < ENOUGH_SEEDS]
    if arms:
        what = f"fewer than {ENOUGH_SEEDS} seeds: {labels(arms, comparison)}"
        advice = f"run {ENOUGH_SEEDS} seeds or more"
        yield finding("warning", few_seeds, comparison, what, advice, "quality", arms_of(arms))


def seeds_not_shared(comparison: Comparison) -> Iterator[Finding]:
    """Only runs of the same seed have the same initial weights and order of data."""
    base = comparison.baseline
    if base is None:
        return
    alone = [runs for runs in comparison.rivals if not runs.runs.keys() & base.runs.keys()]
    shared = [runs for runs in comparison.rivals if runs.runs.keys() & base.runs.keys()]
    more = [runs for runs in shared if runs.runs.keys() - base.runs.keys()]
    advice = f"run {base.arm.label} with those seeds"
    if alone:
        what = f"no seed in common with {base.arm.label}: {labels(alone)}"
        yield finding("error", seeds_not_shared, comparison, what, advice, "quality", arms_of(alone))
    if more:
        what = f"seeds that {base.arm.label} has no run of, which are in no paired figure: {labels(more)}"
        yield finding("warning", seeds_not_shared, comparison, what, advice, "quality", arms_of(more))


def missing_runs(comparison: Comparison) -> Iterator[Finding]:
    """A run that is not there may be one that went wrong: it counts as infinitely bad until it is."""
    base = comparison.baseline
    wanted = set(base.runs) if base is not None else set().union(*(runs.runs for runs in comparison.arms))
    some = [runs for runs in comparison.arms if wanted & runs.runs.keys()]
    lacking = {runs.arm: sorted(wanted - runs.runs.keys()) for runs in some if wanted - runs.runs.keys()}
    if lacking:
        named = [f"{arm.label} (seed {numbers(seeds)})" for arm, seeds in lacking.items()]
        what = f"runs are missing, dropped or never made: {listed(named)}"
        advice = "run them, or compare over shared seeds only (--select seed=...), and say so"
        yield finding("error", missing_runs, comparison, what, advice, "quality", tuple(lacking))


def repeated_runs(comparison: Comparison) -> Iterator[Finding]:
    """Several runs have the same seed. The last one that ended well is used, and the reader must know that."""
    retried = [
        runs for runs in comparison.arms if any(failed(r) and r.get("status") != "preempted" for r in runs.repeated)
    ]
    if retried:
        what = f"runs that failed and were made again, of which the one that ended well counts: {labels(retried)}"
        advice = "find out whether the machine or the method failed; if the method, count it as failed"
        yield finding("warning", repeated_runs, comparison, what, advice, "quality", arms_of(retried))
    unlike = []
    for runs in comparison.arms:
        again = [row for row in runs.repeated if not failed(row)]
        if any(loss_of(row) != loss_of(runs.runs[row["seed"]]) for row in again):
            unlike.append(runs)
    if unlike:
        quality = quality_of(unlike[0].repeated[0]).column
        what = f"the same seed again with another {quality}: {labels(unlike)}"
        advice = "find what changed between the runs; the last one is used"
        yield finding("warning", repeated_runs, comparison, what, advice, "quality", arms_of(unlike))
