"""The curves of an arm's runs as numbers, read once: every figure of curves, and every time to quality, asks for them.

A file's lines are objects with many keys; here each quantity is two arrays, of 16 bytes a point.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from analysis.rows.comparing.comparisons import ArmRuns
from analysis.rows.comparing.remembered import remembered
from analysis.rows.curves.files import Lines, read_curve
from analysis.rows.reading import is_number

Curve = Mapping[str, "Points"]
"""A run's points by quantity (``train_loss``, ``tokens``), in the order of its file."""


@dataclass(frozen=True)
class Points:
    """One quantity of one run: the steps at which it was written, and its values; NaN where that was no number."""

    steps: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self.steps, self.values, strict=True)

    @property
    def known(self) -> list[tuple[float, float]]:
        """Steps and values that are numbers."""
        return [(step, value) for step, value in self if not math.isnan(value)]


NOTHING = Points()  # of a quantity that a curve does not have


@remembered
def curves_of(runs: ArmRuns) -> Mapping[int, tuple[Curve, Sequence[str]]]:
    """Each seed's curve, and what is wrong with its file."""
    curves = {}
    for seed, row in runs.runs.items():
        lines, why = read_curve(row)
        curves[seed] = _points(lines), why
    return curves


def _points(lines: Lines) -> Curve:
    by_name: dict[str, Points] = {}
    for line in lines:
        for name, value in line.items():
            points = by_name.get(name)
            if points is None:
                points = by_name[name] = Points()
            points.steps.append(line["step"])
            points.values.append(value if is_number(value) else math.nan)
    return by_name
