"""Every number that a report plots, as a table."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analysis.figures.drawing.data import Datum

HEADS = ("section", "figure", "arm", "quantity", "x", "value", "low", "high", "n")


def csv_text(data: Iterable[tuple[str, str, Datum]]) -> str:
    """CSV with a head line: ``low`` to ``high`` is the 95 % interval over ``n`` seeds; empty: not known."""
    lines = [
        (section, figure, one.arm, one.quantity, one.x, one.value, one.low, one.high, one.n)
        for section, figure, one in data
    ]
    numbers = dict.fromkeys(("x", "value", "low", "high"), float)
    table = pd.DataFrame(lines, columns=list(HEADS)).astype(numbers)
    text: str = table.to_csv(index=False, float_format="%.8g", lineterminator="\n")
    return text
