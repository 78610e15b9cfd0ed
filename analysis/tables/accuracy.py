"""Top-1 accuracy: the share of validation tokens that are the model's first choice, and its change.

A perplexity asks for every probability, an accuracy only for the largest: what a user of the model sees of a loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.checks.fairness import verdict
from analysis.checks.finding import Finding
from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.rows.reading import is_number
from analysis.statistics import gains
from analysis.tables.changes import change_text, summary_text
from analysis.tables.formats import Table

COLUMN = "val_accuracy"
HEADS = ("arm", "accuracy, %", "change, points", "seeds", "failed")


def accuracy_table(comparison: Comparison, findings: Sequence[Finding], title: str | None = None) -> Table | None:
    """Accuracy in percent of every arm, and its change in percentage points, seed by seed.

    None where a run that ended well has none (older rows), or where all failed. ``findings`` are what speaks against
    the comparison (`fairness.Judge`)."""
    ended = [row for runs in comparison.arms for row in runs.ended_well]
    if not ended or not all(is_number(row.get(COLUMN)) for row in ended):
        return None
    rows = [_line(runs, comparison.baseline) for runs in comparison.arms]
    against = f", against {comparison.baseline.arm.label}" if comparison.baseline else ""
    note = verdict(findings, comparison, ("quality",))
    return Table(f"{title or comparison.setting.label}: top-1 accuracy{against}", HEADS, rows, note)


def _line(runs: ArmRuns, baseline: ArmRuns | None) -> list[str]:
    mine = _percent(runs)
    change = None if baseline is None or runs is baseline else gains.change(mine, _percent(baseline))
    return [
        runs.arm.label,
        summary_text(gains.over_seeds(mine.values()), digits=2),
        change_text(change, digits=3),
        str(len(runs.runs)),
        str(len(runs.failures) or "-"),
    ]


def _percent(runs: ArmRuns) -> dict[int, float | None]:
    return {seed: None if share is None else 100 * share for seed, share in gains.by_seed(runs, COLUMN).items()}
