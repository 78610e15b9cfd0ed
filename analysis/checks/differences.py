"""What the runs of a comparison do not have in common, and which arms are the odd ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import Comparison
from analysis.rows.reading import Row


def finished(comparison: Comparison) -> list[Row]:
    """The rows that measured everything; one whose loss is not finite is among them."""
    return [row for row in comparison.rows if row.get("status") == "ok"]


def by_seed(comparison: Comparison) -> dict[int, dict[Arm, Row]]:
    """The finished rows of an arm, seeds ascending."""
    rows: dict[int, dict[Arm, Row]] = {}
    for runs in comparison.arms:
        for seed, row in runs.runs.items():
            if row.get("status") == "ok":
                rows.setdefault(seed, {})[runs.arm] = row
    return dict(sorted(rows.items()))


def differing(comparison: Comparison, value: Callable[[Row], Any]) -> tuple[list[str], tuple[Arm, ...]]:
    """All values of a column among the finished rows, and the arms with a value that the baseline does not have.

    No arm is named where the baseline itself has several values: then all arms are meant."""
    values = distinct(value(row) for row in finished(comparison))
    if len(values) < 2:  # as nearly always
        return values, ()
    by_arm = {
        runs.arm: distinct(value(row) for row in runs.runs.values() if row.get("status") == "ok")
        for runs in comparison.arms
    }
    own = [] if comparison.baseline is None else by_arm[comparison.baseline.arm]
    if len(own) != 1:
        return values, ()
    return values, tuple(arm for arm, texts in by_arm.items() if set(texts) - set(own))


def differing_by_seed(comparison: Comparison, value: Callable[[Row], Any]) -> tuple[list[int], tuple[Arm, ...]]:
    """The seeds whose runs differ in a value, and the arms that differ there from the baseline, as `differing`."""
    base = comparison.baseline
    seeds: list[int] = []
    unlike: dict[Arm, None] = {}
    is_known = base is not None
    for seed, rows in by_seed(comparison).items():
        if len(distinct(value(row) for row in rows.values())) > 1:
            seeds.append(seed)
            own = value(rows[base.arm]) if base is not None and base.arm in rows else None
            is_known = is_known and own is not None
            unlike |= dict.fromkeys(arm for arm, row in rows.items() if value(row) not in (None, own))
    return seeds, tuple(unlike) if is_known else ()


def distinct(values: Iterable[Any]) -> list[str]:
    """The different values as text. Null is no value, and a NaN is like no other value."""
    seen: dict[Any, str] = {}
    for number, value in enumerate(values):
        if value is not None:
            key = _key(value, number)
            if key not in seen:
                seen[key] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return _unique(seen.values())


def _key(value: Any, number: int) -> Any:
    """What makes a value the same as another; ``number`` makes every NaN a value of its own."""
    if isinstance(value, float) and math.isnan(value):
        return number, "NaN"
    return (type(value), value) if isinstance(value, str | int | float) else json.dumps(value, sort_keys=True)


def _unique(texts: Iterable[str]) -> list[str]:
    """The texts without repetitions, in order; "NaN" stays as often as it comes."""
    seen: set[str] = set()
    kept = []
    for text in texts:
        if text not in seen or text == "NaN":
            kept.append(text)
            seen.add(text)
    return kept
