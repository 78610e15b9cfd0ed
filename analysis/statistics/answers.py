"""What a comparison answers: which arms hold the bar, which is best at its ratio, which fail and how.

The bar is what this project has to reach: at least `RATIO` times fewer bytes, and at most `MARGIN` more perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from analysis.rows.comparing.comparisons import ArmRuns, Comparison, failed
from analysis.rows.comparing.remembered import remembered
from analysis.rows.reading import Row
from analysis.statistics import measures
from analysis.statistics.beaten import beaten
from analysis.statistics.intervals import Paired, Summary, paired, summary, within

RATIO, MARGIN = 2.0, 0.01
_LETTERS = 80  # of an error in a table
Bar = Literal["baseline", "holds", "holds, fp32 only", "no: ratio", "no: PPL", "no: failed", "undecided", "unknown"]
Front = Literal["yes", "perhaps", "no", "-"]


@dataclass(frozen=True)
class Line:
    """One arm of the table. Bytes and times are over the runs that ended well, quality is over all. None: unknown.

    ``change`` is against the baseline by seed. ``front``: no arm is better at as few bits a parameter (by the means).
    ``perhaps``: one is, but not beyond chance. ``beaten_by`` names the arms that are beyond chance."""

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
        """How the arm is written in figures: ``int4 hadamard + delta``."""
        return self.runs.arm.label


@remembered
def lines(comparison: Comparison, shared_seeds: bool = False) -> Sequence[Line]:
    """A line for every arm: the baseline first, the others by the ratio of all traffic, arms without a ratio last.

    ``shared_seeds``: compare over the seeds that both arms have a run of, instead of all seeds of the baseline."""
    table = unplaced(comparison, shared_seeds)
    known = placed(table, [line.bits for line in table])
    return sorted(known, key=lambda line: (line.bar != "baseline", line.ratio_fp32 is None, line.ratio_fp32 or 0.0))


def placed(table: Sequence[Line], costs: Sequence[float | None]) -> list[Line]:
    """The lines with their places (``front``, ``beaten_by``) on the front of quality against ``costs``, one a line.

    Costs are bits, seconds, or whatever else is the better the less it is; None: not known. Such lines, and arms with
    failed runs, have no place."""
    known = [n for n, line in enumerate(table) if costs[n] is not None and not line.runs.failures]
    some, result = [table[n] for n in known], list(table)
    found = beaten(np.array([costs[n] for n in known], dtype=float), _losses(some))
    for n, one in zip(known, found, strict=True):
        if one is None:
            result[n] = replace(table[n], front="yes")
        else:
            result[n] = replace(table[n], front="no" if one.is_sure else "perhaps", beaten_by=some[one.by].label)
    return result


def unplaced(comparison: Comparison, shared_seeds: bool = False) -> Sequence[Line]:
    """A line for every arm in the comparison's order, without asking who is best at its bits: linear in the arms."""
    return [_line(runs, comparison, shared_seeds) for runs in comparison.arms]


def what_is_missing(line: Line) -> str:
    """Why an arm does not hold the bar, in a few words; empty for an arm that does."""
    if line.bar == "no: failed":
        return "; ".join(dict.fromkeys(map(_end, line.runs.failures))) or "runs for every seed of the baseline"
    if line.bar == "unknown":
        return "a baseline to compare with"
    reasons = []
    if line.bar == "no: ratio":
        reasons.append(_what_to_compress(line.runs))
    if line.change is not None and line.change.upper is not None and line.change.lower is not None:
        verdict = within(line.change, MARGIN)
        reasons += [f"PPL at least {100 * line.change.lower:.2f} % worse"] * (verdict == "worse")
        reasons += [f"PPL may be {100 * line.change.upper:.2f} % worse: more seeds"] * (verdict == "undecided")
    elif line.bar == "undecided":
        reasons += ["two paired seeds or more"]
    return "; ".join(reasons)


def _what_to_compress(runs: ArmRuns) -> str:
    arm = runs.arm
    if arm.compresses_activations:
        sent = {op for row in runs.ended_well for op in row.get("elements_by_op") or {}}
        return "compress what else is sent, too" if sent - set(measures.ACTIVATIONS) else "sends too much"
    return "compress the other direction, too" if "none" in (arm.gradients, arm.parameters) else "sends too much"


def _line(runs: ArmRuns, comparison: Comparison, shared_seeds: bool) -> Line:
    base, change = comparison.baseline, None
    if base is not None and runs is not base:
        change = paired(runs, base, runs.runs.keys() & base.runs.keys() if shared_seeds else None)
    line = replace(_alone(runs), change=change)
    return replace(line, bar=_bar(line, comparison))


@remembered
def _alone(runs: ArmRuns) -> Line:
    """The arm's line as far as no other arm has a part in it."""
    mean = partial(measures.mean_over_seeds, runs)
    return Line(
        runs,
        gradient_ratio=mean(measures.gradient_ratio),
        ratio_fp32=mean(measures.ratio_vs_fp32),
        ratio_bf16=mean(measures.ratio_vs_bf16),
        bits=mean(measures.bits),
        tokens_per_s=measures.over_seeds(runs, measures.column("tokens_per_s")),
        step_ms=mean(measures.column("step_time_ms_p50")),
        communication=mean(measures.column("comm_ratio")),
        ppl=summary(None if failed(row) else row.get("val_ppl") for row in runs.runs.values()),
        change=None,
        bar="unknown",
    )


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


def _losses(lines: Sequence[Line]) -> npt.NDArray[np.float64]:
    """Validation losses as a matrix: an arm a row, a seed a column; NaN where there is no run."""
    seeds = sorted({seed for line in lines for seed in line.runs.runs})
    columns = {seed: column for column, seed in enumerate(seeds)}
    matrix = np.full((len(lines), len(seeds)), np.nan)
    for number, line in enumerate(lines):
        for seed, loss in line.runs.losses.items():
            matrix[number, columns[seed]] = np.nan if loss is None else loss
    return matrix


def _end(row: Row) -> str:
    """How a failed run ended, in a few words."""
    if row.get("status") == "ok":
        return "diverged: its loss is not finite"
    why = " ".join(str(row.get("error") or "no reason recorded").split())
    return f"{row['status']}: {why if len(why) <= _LETTERS else why[: _LETTERS - 3] + '...'}"
