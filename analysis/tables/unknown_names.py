"""Names that a user asked for and the rows do not have: refused before anything is computed, with the nearest ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from analysis.rows.comparing.comparisons import Comparison
from analysis.rows.nearest import nearest

DEFAULT_BASELINE = "none"
_SHOWN = 8  # names in a message


def check_baseline(name: str, compared: Sequence[Comparison]) -> None:
    """ValueError when no comparison has the baseline that the user asked for.

    Rows without the default baseline are no mistake of the user: that they lack it is a finding of `fairness`."""
    if name == DEFAULT_BASELINE or not compared or any(comparison.baseline is not None for comparison in compared):
        return
    labels = _labels(compared)
    several = [
        runs.arm.label
        for comparison in compared
        for runs in comparison.arms
        if name in (runs.arm.gradients, runs.arm.parameters)
    ]
    if several:
        there = _listed(list(dict.fromkeys(several)))
        raise ValueError(
            f"--baseline {name}: no arm has that name alone; give the label of one of those with it: {there}"
        )
    raise ValueError(
        f"--baseline {name}: no comparison has such an arm{nearest(name, labels)}; they have {_listed(labels)}"
    )


def check_arm(label: str, compared: Sequence[Comparison]) -> None:
    """ValueError when no comparison has an arm of that label."""
    labels = _labels(compared)
    if label not in labels:
        raise ValueError(f"--arm: no arm {label!r}{nearest(label, labels)}; the rows have {_listed(labels)}")


def check_settings(names: Iterable[str], flag: str, known: Iterable[str]) -> None:
    """ValueError for the first of ``names`` that is no setting of any row; ``flag`` is the flag that named it."""
    there = set(known)
    for name in names:
        if name not in there:
            raise ValueError(f"{flag} {name}: no row has a setting of that name{nearest(name, there)}")


def _labels(compared: Sequence[Comparison]) -> list[str]:
    return list(dict.fromkeys(runs.arm.label for comparison in compared for runs in comparison.arms))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
