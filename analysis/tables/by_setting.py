"""An arm's cost in several settings, a line a setting: does what was found in one hold in the others?"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.rows.comparing.groups import labels
from analysis.rows.comparing.told_apart import told_apart
from analysis.statistics.intervals import paired
from analysis.statistics.measures import column, over_seeds
from analysis.tables.changes import change_text, ppl_digits
from analysis.tables.formats import Table


def by_setting_table(group: Sequence[Comparison], digits: int = 2) -> Table:
    """The baseline's PPL in each setting, and the change of every arm that several of them have, seed by seed."""
    arms = [name for name in labels(group) if any(name == runs.arm.label for c in group for runs in c.rivals)]
    rows = [
        [name, str(len(c.baseline.runs)), _ppl(c.baseline), *_changes(c, arms, digits)]
        for c, name in zip(group, told_apart([c.setting for c in group]), strict=True)
        if c.baseline is not None
    ]
    heads = ("setting", "seeds", "PPL of the baseline", *arms)
    return Table("Change of PPL in each setting, against its own baseline", heads, rows)


def _changes(comparison: Comparison, arms: Sequence[str], digits: int) -> list[str]:
    there = {runs.arm.label: runs for runs in comparison.rivals}
    assert comparison.baseline is not None
    return [
        change_text(paired(there[arm], comparison.baseline), digits, percent=True) if arm in there else "-"
        for arm in arms
    ]


def _ppl(baseline: ArmRuns) -> str:
    perplexity = over_seeds(baseline, column("val_ppl"))
    return "-" if perplexity is None else f"{perplexity.mean:,.{ppl_digits(perplexity.mean)}f}"
