"""What a comparison answers: who holds the bar, who is best at its ratio, and who fails and how.

The bar is the one this project was given: at least `RATIO` times fewer bytes, at most `MARGIN` more perplexity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from analysis import measures
from analysis.arms import ArmRuns, Comparison, failed
from analysis.rows import Row
from analysis.statistics import Paired, Summary, paired, summary, within

RATIO, MARGIN = 2.0, 0.01
_LETTERS = 80  # of an error in a table
Bar = Literal["baseline", "holds", "holds, fp32 only", "no: ratio", "no: PPL", "no: failed", "undecided", "unknown"]
Front = Literal["yes", "perhaps", "no", "-"]


@dataclass(frozen=True)
class Line:
    """One arm's figures; bytes and times over the runs that ended well, quality over all. None: unknown.

    ``change`` is against the baseline by seed; ``front``: is nobody better at as few bits a parameter (by the means)?
    ``perhaps``: somebody is, but not beyond chance. ``beaten_by``: by whom."""

    runs: ArmRuns
    gradient_ratio: float | None
    ratio_fp32: float | None
    ratio_bf16: float | None
    bits: float | None
    tokens_per_s: Summary | None
    step_ms: float | None
    communication: float | None
    ppl: Summary
    change: Paired | None
    bar: Bar
    front: Front = "-"
    beaten_by: str | None = None

    @property
    def label(self) -> str:
        """The arm's."""
        return self.runs.arm.label


def lines(comparison: Comparison, shared_seeds: bool = False) -> list[Line]:
    """The baseline first, the others by the ratio of all traffic; arms that never got that far last.

    ``shared_seeds``: compare over the seeds that both have a run of, instead of all of the baseline's."""
    found = [_line(runs, comparison, shared_seeds) for runs in comparison.arms]
    found = [_placed(line, found) for line in found]
    return sorted(found, key=lambda line: (line.bar != "baseline", line.ratio_fp32 is None, line.ratio_fp32 or 0.0))


def what_is_missing(line: Line) -> str:
    """Why an arm does not hold the bar, in a few words; empty for one that does."""
    if line.bar == "no: failed":
        return "; ".join(dict.fromkeys(map(_end, line.runs.failures))) or "runs for every seed of the baseline"
    if line.bar == "unknown":
        return "a baseline to compare with"
    reasons = []
    if line.bar == "no: ratio":
        one_way = "none" in (line.runs.arm.gradients, line.runs.arm.parameters)
        reasons += ["compress the other direction, too" if one_way else "sends too much"]
    if line.change is not None and line.change.upper is not None and line.change.lower is not None:
        verdict = within(line.change, MARGIN)
        reasons += [f"PPL at least {100 * line.change.lower:.2f} % worse"] * (verdict == "worse")
        reasons += [f"PPL may be {100 * line.change.upper:.2f} % worse: more seeds"] * (verdict == "undecided")
    elif line.bar == "undecided":
        reasons += ["two paired seeds or more"]
    return "; ".join(reasons)


def _line(runs: ArmRuns, comparison: Comparison, shared_seeds: bool) -> Line:
    def mean(measure: measures.Measure) -> float | None:
        found = measures.over_seeds(runs, measure)
        return None if found is None else found.mean

    base, change = comparison.baseline, None
    if base is not None and runs is not base:
        change = paired(runs, base, runs.runs.keys() & base.runs.keys() if shared_seeds else None)
    line = Line(
        runs,
        gradient_ratio=mean(measures.gradient_ratio),
        ratio_fp32=mean(measures.ratio_vs_fp32),
        ratio_bf16=mean(measures.ratio_vs_bf16),
        bits=mean(measures.bits_per_parameter),
        tokens_per_s=measures.over_seeds(runs, measures.column("tokens_per_s")),
        step_ms=mean(measures.column("step_time_ms_p50")),
        communication=mean(measures.column("comm_ratio")),
        ppl=summary(None if failed(row) else row.get("val_ppl") for row in runs.runs.values()),
        change=change,
        bar="unknown",
    )
    return replace(line, bar=_bar(line, comparison))


def _bar(line: Line, comparison: Comparison) -> Bar:
    if line.runs is comparison.baseline:
        return "baseline"
    if line.runs.failures or (line.change is not None and line.change.lost):
        return "no: failed"
    if line.change is None or line.ratio_fp32 is None:
        return "unknown"
    if line.ratio_fp32 < RATIO:
        return "no: ratio"
    verdict = within(line.change, MARGIN)
    if verdict != "within":
        return "no: PPL" if verdict == "worse" else "undecided"
    return "holds" if line.ratio_bf16 is not None and line.ratio_bf16 >= RATIO else "holds, fp32 only"


def _placed(line: Line, among: Sequence[Line]) -> Line:
    """With its place in respect of the Pareto front of bits and quality; arms with failed runs have none."""
    if line.bits is None or line.runs.failures:
        return line
    rivals = [
        other
        for other in among
        if other.runs is not line.runs
        and other.bits is not None
        and other.bits <= line.bits
        and not other.runs.failures
    ]
    better = [(other, worse) for other in rivals if _is_beaten(line, other, worse := _against(line, other))]
    if not better:
        return replace(line, front="yes")
    beyond_chance = [(other, worse) for other, worse in better if worse.lower is not None and worse.lower > 0]
    by = max(beyond_chance or better, key=lambda entry: entry[1].mean or 0.0)[0].label
    return replace(line, front="no" if beyond_chance else "perhaps", beaten_by=by)


def _against(line: Line, other: Line) -> Paired:
    """How much worse the line is than another arm, over the seeds they share."""
    return paired(line.runs, other.runs, line.runs.runs.keys() & other.runs.runs.keys())


def _is_beaten(line: Line, other: Line, worse: Paired) -> bool:
    """By an arm with no more bits: better quality, or the same for fewer bits."""
    if worse.mean is None or line.bits is None or other.bits is None:
        return False
    return worse.mean > 0 or (worse.mean == 0 and other.bits < line.bits)


def _end(row: Row) -> str:
    """How a failed run ended."""
    if row.get("status") == "ok":
        return "diverged: its loss is not finite"
    why = " ".join(str(row.get("error") or "no reason recorded").split())
    return f"{row['status']}: {why if len(why) <= _LETTERS else why[: _LETTERS - 3] + '...'}"
