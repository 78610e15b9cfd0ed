"""Every number that a report plots, as a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable

from analysis.figures.data import Datum

HEADS = ("section", "figure", "arm", "quantity", "x", "value", "low", "high", "n")


def csv_text(data: Iterable[tuple[str, str, Datum]]) -> str:
    """CSV with a head line: ``low`` to ``high`` is the 95 % interval over ``n`` seeds; empty: not known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADS)
    for section, figure, one in data:
        values = [_shown(v) for v in (one.x, one.value, one.low, one.high)]
        writer.writerow([section, figure, one.arm, one.quantity, *values, one.n])
    return text.getvalue()


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return "inf" if math.isinf(value) else f"{value:.8g}"
