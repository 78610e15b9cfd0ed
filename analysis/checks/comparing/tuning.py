"""Had every arm the same chance to choose its best setting: as many values, the same ones, on the same seeds?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from analysis.checks.comparing.wording import arms_of, finding, labels, listed
from analysis.checks.differences import distinct
from analysis.checks.finding import Finding
from analysis.checks.grids import candidates
from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import ArmRuns, Comparison, Values, mean_loss
from analysis.rows.reading import is_number


def unequal_tuning(comparison: Comparison) -> Iterator[Finding]:
    """Whoever may choose among more values wins more often; values beyond an edge may be no advantage (`grids`)."""
    counts, base = _distinct_counts(comparison), comparison.baseline
    like_base = [] if base is None else next(arms for arms in counts.values() if base in arms)
    others = [] if base is None else [runs for runs in comparison.rivals if runs not in like_base]
    advice = "try the same values for every arm, the baseline among them, and say how many"
    if len(counts) > 1:
        tried = "; ".join(f"{count}: {labels(arms)}" for count, arms in sorted(counts.items()))
        what = f"arms had unequal numbers of candidates ({tried})"
        yield finding("error", unequal_tuning, comparison, what, advice, arms=arms_of(others))
    chosen = distinct(runs.tuned for runs in comparison.arms)
    if set(counts) == {1} and len(chosen) > 1:
        what = f"arms differ in what was tuned, and nothing else was tried: {listed(chosen)}"
        others = [] if base is None else [runs for runs in comparison.rivals if runs.tuned != base.tuned]
        yield finding("error", unequal_tuning, comparison, what, advice, arms=arms_of(others))


def other_candidates(comparison: Comparison) -> Iterator[Finding]:
    """As many candidates as the baseline, but others: one arm's may lie nearer to its best than another's do."""
    base, tried = comparison.baseline, candidates(comparison)
    if base is None or base.candidates < 2:
        return
    alike = [runs for runs in comparison.rivals if len(tried[runs.arm]) == len(tried[base.arm])]
    others = [runs for runs in alike if tried[runs.arm] != tried[base.arm]]
    if others:
        what = f"arms tried other values than {base.arm.label} ({_values(base)}): {_told(others, _values)}"
        advice = "try the same values for every arm"
        yield finding("error", other_candidates, comparison, what, advice, "quality", arms_of(others))


def other_tuning_seeds(comparison: Comparison) -> Iterator[Finding]:
    """Where candidates were tried on seeds of their own: who tried them on other or more of these chose better."""
    base = comparison.baseline
    if base is None or not _is_apart(base):
        return
    others = [runs for runs in comparison.rivals if _is_apart(runs) and _seeds(runs) != _seeds(base)]
    if others:
        what = f"candidates of {base.arm.label} were tried with seed {_seeds(base)}, those of others not: "
        advice = "try every arm's candidates with the same seeds"
        what += _told(others, _seeds)
        yield finding("error", other_tuning_seeds, comparison, what, advice, "quality", arms_of(others))


def best_at_the_edge(comparison: Comparison) -> Iterator[Finding]:
    """The best of the values tried is the largest or smallest: a better one may lie beyond."""
    at_edge: list[tuple[Arm, str]] = []
    for runs in comparison.arms:
        for name, value in runs.tuned.items():
            tried = [json.loads(dict(values)[name]) for values in runs.trials]
            if len(tried) > 1 and all(map(is_number, tried)) and value in (min(tried), max(tried)):
                at_edge.append((runs.arm, f"{runs.arm.label} ({name} {value:g})"))
    if at_edge:
        what = f"the best value lies on the edge of those tried: {listed([text for _, text in at_edge])}"
        arms = tuple(dict.fromkeys(arm for arm, _ in at_edge))
        yield finding("warning", best_at_the_edge, comparison, what, "try values beyond it", "quality", arms)


def tuned_otherwise(comparison: Comparison) -> Iterator[Finding]:
    """The values with the most seeds are used for an arm, but on the seeds that they share other values did better."""
    beaten = []
    for runs in comparison.arms:
        for trial in runs.trials.values() if runs.candidates > 1 else ():
            shared = trial.keys() & runs.runs.keys()
            if shared and mean_loss(trial[s] for s in shared) < mean_loss(runs.runs[s] for s in shared):
                beaten.append(runs)
                break
    if beaten:
        what = f"another candidate did better on the seeds that it was tried with: {labels(beaten)}"
        advice = "run that one with all seeds"
        yield finding("warning", tuned_otherwise, comparison, what, advice, "quality", arms_of(beaten))


def _distinct_counts(comparison: Comparison) -> dict[int, list[ArmRuns]]:
    counts, tried = dict[int, list[ArmRuns]](), candidates(comparison)
    for runs in comparison.arms:
        counts.setdefault(max(len(tried[runs.arm]), 1), []).append(runs)
    return counts


def _is_apart(runs: ArmRuns) -> bool:
    """Was the arm tuned on seeds of its own, none of which judges it?"""
    tried = {seed for trial in runs.trials.values() for seed in trial}
    return runs.candidates > 1 and not tried & runs.runs.keys()


def _seeds(runs: ArmRuns) -> str:
    """The seeds of every candidate, as text; more than one text where candidates had different seeds."""
    by_values = {", ".join(map(str, sorted(trial))) for trial in runs.trials.values()}
    return " or ".join(sorted(by_values))


def _values(runs: ArmRuns) -> str:
    return ", ".join(sorted(map(_said, runs.trials), key=lambda text: (len(text), text)))


def _said(values: Values) -> str:
    return " ".join(f"{name} {json.loads(text)}" for name, text in values)


def _told(arms: Sequence[ArmRuns], tell: Callable[[ArmRuns], str]) -> str:
    return listed([f"{runs.arm.label} ({tell(runs)})" for runs in arms])
