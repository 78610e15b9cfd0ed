"""What a step of each arm takes on a machine that does nothing else: from rows of their own.

Quality and bytes are the same whatever else the machine does, so many seeds may share it. Times are not. A short sweep
on a quiet machine (`experiments/recipes/chart/chart_times.yaml`) measures them; its losses count for nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.checks.fairness import Judge
from analysis.checks.finding import Finding
from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import Comparison, comparisons
from analysis.rows.comparing.settings import TUNED
from analysis.rows.reading import Row, is_number
from analysis.statistics.tuning import MAY_DIFFER, in_order, one_setting

WHICH = "the rows of --times"


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step by arm, and what a check of fairness holds against them."""

    seconds: Mapping[Arm, float]
    findings: Sequence[Finding]


def step_times(rows: Iterable[Row], compared: Comparison) -> StepTimes:
    """The mean step of every arm, the median over its runs that ended; rows behind a link are left out.

    ``compared`` is what the times are for. ValueError: the rows are of several settings, or of another than that in
    more than their length."""
    free = in_order(row for row in rows if row.get("link_rate_asked") is None)
    timed = one_setting(comparisons(free, tuned=TUNED, across_training=True), WHICH)
    unlike = [text for text in timed.setting.differences(compared.setting) if text.split()[0] not in MAY_DIFFER]
    if unlike:
        raise ValueError(f"{WHICH} are of another setting than the judged ones: {'; '.join(unlike[:4])}")
    seconds = {}
    for runs in timed.arms:
        known = [row["step_time_ms_mean"] for row in runs.ended_well if is_number(row.get("step_time_ms_mean"))]
        if known:
            seconds[runs.arm] = statistics.median(known) / 1e3
    return StepTimes(seconds, [one for one in Judge(free).findings(timed) if one.concerns == "times"])
