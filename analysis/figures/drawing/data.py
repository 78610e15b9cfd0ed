"""What a figure shows, as numbers: its `data` makes them, its `draw` draws them, a report writes them to a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.rows.comparing.comparisons import ArmRuns
from analysis.statistics.intervals import Summary


@dataclass(frozen=True)
class Datum:
    """One number of an arm. ``quantity`` is an English label of `catalogue`; ``x`` is its place along an axis, if any.

    ``low`` to ``high`` is the 95 % interval over ``n`` seeds, None with one seed."""

    arm: str
    family: str
    quantity: str
    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    x: float | None = None


def of_summary(runs: ArmRuns, quantity: str, summary: Summary, x: float | None = None) -> Datum:
    """The datum of a summary over seeds."""
    return Datum(runs.arm.label, runs.arm.family, quantity, summary.mean, summary.low, summary.high, summary.n, x)


def arms(data: Sequence[Datum]) -> dict[str, str]:
    """The families of all arms by the arm's label, in the order in which they first come."""
    return {one.arm: one.family for one in data}


def of_quantity(data: Sequence[Datum], quantity: str) -> dict[str, Datum]:
    """Each arm's number of one quantity, by the arm's label."""
    return {one.arm: one for one in data if one.quantity == quantity}


def strengths(data: Sequence[Datum]) -> dict[str, int]:
    """Each arm's place among those of its family, which decides the dashes of its line."""
    counts: dict[str, int] = {}
    by_arm = {}
    for name, family in arms(data).items():
        by_arm[name] = counts.get(family, 0)
        counts[family] = by_arm[name] + 1
    return by_arm
