"""What is held against results rows and against the comparisons they make, and the verdict that figures carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from analysis.checks import row_checks
from analysis.checks.comparing.baselines import alone
from analysis.checks.comparing.machines import overlapping_runs
from analysis.checks.comparing.table import CHECKS
from analysis.checks.finding import QUALITY_AND_BYTES, Concerns, Finding
from analysis.checks.overlaps import meetings
from analysis.checks.sixteen_bits import baselines_of, compresses_further, sixteen_bit_arm
from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import ArmRuns, Comparison, comparisons
from analysis.rows.comparing.remembered import remembered
from analysis.rows.comparing.settings import TUNED
from analysis.rows.reading import Row

_LETTERS = 90  # of a verdict's list
_NAMED = 2  # arms that a verdict names


class Judge:
    """Finds what makes comparisons unfair, once for each comparison.

    ``rows`` are all rows there are, because a run of another comparison may have shared its machine."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = list(rows)
        self._met = meetings(self._rows)
        # by the comparison's id, beside the comparison, which keeps the id its own
        self._own: dict[int, tuple[Comparison, list[Finding]]] = {}
        self._with_rows: dict[int, tuple[Comparison, list[Finding]]] = {}

    def findings(self, comparison: Comparison) -> list[Finding]:
        """The findings about a comparison and about its rows, errors first."""
        if id(comparison) not in self._with_rows:
            findings = [
                replace(finding, arms=(runs.arm,))
                for runs in comparison.arms
                for finding in of_rows(runs.runs.values())
            ]
            whole = _errors_first([*findings, *self.of_comparison(comparison)])
            self._with_rows[id(comparison)] = comparison, whole
        return self._with_rows[id(comparison)][1]

    def of_comparison(self, comparison: Comparison) -> list[Finding]:
        """The findings about the comparison as a whole, without those about single rows. One arm is no comparison."""
        if len(comparison.arms) < 2:
            return []
        if id(comparison) not in self._own:
            findings = [finding for check in CHECKS for finding in check(comparison)]
            findings += overlapping_runs(comparison, self._met)
            self._own[id(comparison)] = comparison, findings
        return self._own[id(comparison)][1]

    def everything(self, compared: Sequence[Comparison]) -> list[Finding]:
        """The findings about all rows, compared or not, and about the comparisons they make, errors first."""
        findings = of_rows(self._rows)
        for comparison in compared:
            findings += self.of_comparison(comparison)
        return _errors_first([*findings, *alone(compared)])


def findings(rows: Sequence[Row], baseline: str = "none", tuned: Sequence[str] = TUNED) -> list[Finding]:
    """`Judge.everything` of the rows and of every comparison that they make."""
    return Judge(rows).everything(comparisons(rows, baseline, tuned))


def of_rows(rows: Iterable[row_checks.Row]) -> list[Finding]:
    """The findings about single rows; rows that did not end well are left to other checks."""
    return [f for row in rows if row.get("status") == "ok" for check in row_checks.CHECKS for f in check(row)]


def findings_of(comparison: Comparison, among: Sequence[Row]) -> list[Finding]:
    """The findings about one comparison; ``among`` are all rows there are."""
    return Judge(among).findings(comparison)


def _errors_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.severity)


def held_against(
    findings: Iterable[Finding], concerns: Sequence[Concerns] | None = None, arms: Iterable[Arm] | None = None
) -> list[Finding]:
    """The findings that bear on a statement: a figure, a table, a claim. Nothing else decides that.

    ``concerns`` is what the statement is about (quality, times, bytes; None: everything), ``arms`` the arms that it is
    about (None: all)."""
    heard = [f for f in findings if concerns is None or f.concerns == "all" or f.concerns in concerns]
    if arms is None:
        return heard
    meant = set(arms)
    return [f for f in heard if not f.arms or not meant.isdisjoint(f.meant)]


def arms_meant(runs: ArmRuns, comparison: Comparison) -> list[Arm]:
    """The arms that a statement about one arm rests on: itself, the baseline, and the arm in 16 bits, where there is
    one."""
    base, plain = comparison.baseline, sixteen_bit_arm(comparison)
    return list(dict.fromkeys(one.arm for one in (base, runs, plain) if one is not None))


def verdict(
    findings: Sequence[Finding],
    comparison: Comparison | None = None,
    concerns: Sequence[Concerns] | None = None,
    arms: Sequence[Arm] | None = None,
) -> str:
    """One line for a figure's foot that sums up what is `held_against` a statement.

    ``fair: 3 seeds, same tokens, bf16 and fp32 baselines``, or ``NOT FAIR: one seed; mixed hardware``; warnings follow
    in brackets. What is held against a few arms names them: ``NOT FAIR: missing runs (lowrank); else fair: ...``."""
    heard = held_against(findings, concerns, arms)
    errors = [f for f in heard if f.severity == "error"]
    warnings = _cut(_checks(f for f in heard if f.severity == "warning"))
    noted = f" (to note: {warnings})" if warnings else ""
    if comparison is None:
        return (f"NOT FAIR: {_cut(_checks(errors))}" if errors else "fair: no error found") + noted
    if errors:
        return _unfair(errors, comparison, arms) + noted
    if len(comparison.arms) < 2:
        return f"one arm only: nothing is compared{noted}"
    by_arm = comparison.by_arm
    return _fair(comparison, comparison.arms if arms is None else [by_arm[a] for a in arms if a in by_arm]) + noted


def overall(findings: Sequence[Finding], comparison: Comparison) -> str:
    """The verdict on everything: one for times and one for the rest where only one of them is fair."""
    results, times = verdict(findings, comparison, QUALITY_AND_BYTES), verdict(findings, comparison, ("times",))
    if is_unfair(results) == is_unfair(times):
        return verdict(findings, comparison)
    return f"quality and bytes {results}; times {times}"


def is_unfair(verdict: str) -> bool:
    """Does the verdict hold an error against the statement, or against a part of it?"""
    return "NOT FAIR" in verdict


def _unfair(errors: Sequence[Finding], comparison: Comparison, arms: Sequence[Arm] | None) -> str:
    """The errors as text. ``arms`` are the only arms that the statement is about; an error about exactly these need not
    name them."""
    general: list[Finding] = []
    of_few: dict[str, dict[Arm, None]] = {}
    for finding in errors:
        if arms is None and _is_of_few(finding, comparison):
            of_few.setdefault(finding.check, {}).update(dict.fromkeys(finding.arms))
        else:
            general.append(finding)
    wrong = _cut([*_checks(general), *(f"{_words(check)} ({_named(list(few))})" for check, few in of_few.items())])
    if general:
        return f"NOT FAIR: {wrong}"
    others = [runs for runs in comparison.arms if not any(runs.arm in few for few in of_few.values())]
    rest = f"; else {_fair(comparison, others)}" if len(others) > 1 else ""
    return f"NOT FAIR: {wrong}{rest}"


def _fair(comparison: Comparison, arms: Sequence[ArmRuns]) -> str:
    counts = [len(runs.runs) for runs in arms]
    seeds = str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    baselines = baselines_of(comparison)
    against = f"{' and '.join(baselines)} baseline{'s' * (len(baselines) > 1)}" if baselines else "no plain baseline"
    return f"fair: {seeds} seed{'s' * (seeds != '1')}, same tokens, {against}"


def _is_of_few(finding: Finding, comparison: Comparison) -> bool:
    """Is the finding about some of the arms only, none of which the other arms rest on?"""
    base, meant = comparison.baseline, finding.meant
    return bool(meant) and base is not None and base.arm not in meant and not _compressed(comparison) <= meant


@remembered
def _compressed(comparison: Comparison) -> frozenset[Arm]:
    """The arms that must be compared with 16 bits."""
    return frozenset(runs.arm for runs in comparison.rivals if compresses_further(runs))


def _named(arms: Sequence[Arm]) -> str:
    more = f" and {len(arms) - _NAMED} more" if len(arms) > _NAMED else ""
    return ", ".join(arm.label for arm in arms[:_NAMED]) + more


def _words(check: str) -> str:
    return check.replace("_", " ")


def _checks(findings: Iterable[Finding]) -> list[str]:
    return list(dict.fromkeys(_words(f.check) for f in findings))


def _cut(names: Sequence[str]) -> str:
    """As many of the texts as fit on a line."""
    shown = list(names)
    while len(shown) > 1 and len("; ".join(shown)) > _LETTERS:
        shown.pop()
    rest = len(names) - len(shown)
    return "; ".join(shown) + (f"; {rest} more" if rest else "")
