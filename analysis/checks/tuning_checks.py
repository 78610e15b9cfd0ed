"""What is wrong with how the arms of a comparison were tuned, beside how many candidates each had.

`comparison_checks.unequal_tuning` counts candidates; these look at which they were, and on which seeds they were tried.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from analysis.checks.finding import Finding
from analysis.checks.grids import candidates
from analysis.rows.comparing.comparisons import ArmRuns, Comparison, Values

Check = Callable[[Comparison], Iterator[Finding]]
_NAMED = 4  # arms in a text


def other_candidates(comparison: Comparison) -> Iterator[Finding]:
    """As many candidates as the baseline, but others: one arm's may lie nearer to its best than another's do."""
    base, tried = comparison.baseline, candidates(comparison)
    if base is None or base.candidates < 2:
        return
    alike = [runs for runs in comparison.rivals if len(tried[runs.arm]) == len(tried[base.arm])]
    others = [runs for runs in alike if tried[runs.arm] != tried[base.arm]]
    if others:
        what = f"arms tried other values than {base.arm.label} ({_values(base)}): {_told(others, _values)}"
        yield _finding(other_candidates, comparison, what, "try the same values for every arm", others)


def other_tuning_seeds(comparison: Comparison) -> Iterator[Finding]:
    """Where candidates were tried on seeds of their own: who tried them on other or more of these chose better."""
    base = comparison.baseline
    if base is None or not _is_apart(base):
        return
    others = [runs for runs in comparison.rivals if _is_apart(runs) and _seeds(runs) != _seeds(base)]
    if others:
        what = f"candidates of {base.arm.label} were tried with seed {_seeds(base)}, those of others not: "
        advice = "try every arm's candidates with the same seeds"
        yield _finding(other_tuning_seeds, comparison, what + _told(others, _seeds), advice, others)


CHECKS: tuple[Check, ...] = (other_candidates, other_tuning_seeds)


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
    more = f" and {len(arms) - _NAMED} more" if len(arms) > _NAMED else ""
    return "; ".join(f"{runs.arm.label} ({tell(runs)})" for runs in arms[:_NAMED]) + more


def _finding(check: Check, comparison: Comparison, what: str, advice: str, arms: Sequence[ArmRuns]) -> Finding:
    subject, name = comparison.setting.label, check.__name__
    return Finding("error", name, subject, what, advice, "quality", tuple(runs.arm for runs in arms))
