"""How a mean over seeds, and a paired change, read in a table's cell."""

from __future__ import annotations

import math
from typing import Protocol

from analysis.rows.ranges import spans
from analysis.statistics.intervals import Summary


class PairedChange(Protocol):
    """What a table shows of a difference to the baseline, seed by seed. None: there is no pair, or only one."""

    @property
    def mean(self) -> float | None:
        """Mean of the differences over the pairs."""

    @property
    def low(self) -> float | None:
        """Lower end of the two-sided 95 % interval."""

    @property
    def high(self) -> float | None:
        """Upper end of the two-sided 95 % interval."""

    @property
    def lost(self) -> tuple[int, ...]:
        """Seeds where the arm failed or has no run."""


def ppl_digits(ppl: float) -> int:
    """Decimal places that a perplexity is shown with: four digits in all, and at least one place."""
    if not math.isfinite(ppl) or ppl <= 0:
        return 1
    return max(1, 3 - math.floor(math.log10(ppl)))


def summary_text(summary: Summary, digits: int) -> str:
    """Mean, standard deviation over seeds, and interval of the mean: ``107.2 (sd 1.1), 95 % [106.1, 108.3]``.

    The mean alone where one seed has no spread, and a sign of infinity where a run failed."""
    if math.isinf(summary.mean):
        return "-∞" if summary.mean < 0 else "∞"
    text = f"{summary.mean:,.{digits}f}"
    if summary.std is None or summary.low is None or summary.high is None:
        return text
    return f"{text} (sd {summary.std:,.{digits}f}), 95 % [{summary.low:,.{digits}f}, {summary.high:,.{digits}f}]"


def change_text(change: PairedChange | None, digits: int, percent: bool = False) -> str:
    """The change as text: ``-0.012 [-0.030, +0.006]`` or ``+0.12 % [-0.30, +0.54]``.

    Where there is no number, the text says what was lost."""
    if change is None or change.mean is None:
        return "-"
    if change.lost:
        return f"lost: seed {', '.join(spans(change.lost))}"
    scale, unit = (100, " %") if percent else (1, "")
    text = f"{scale * change.mean:+.{digits}f}{unit}"
    if change.low is None or change.high is None:
        return text
    return f"{text} [{scale * change.low:+.{digits}f}, {scale * change.high:+.{digits}f}]"
