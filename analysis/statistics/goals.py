"""Time to quality and quality at a time, as the runs measured them themselves: ``target_ppl`` and ``ppl_at_s``.

`analysis.statistics.time_to_quality` tells from curves what a step's time behind another link would make of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from analysis.rows.comparing.comparisons import ArmRuns, Comparison, failed
from analysis.rows.reading import Row, is_number
from analysis.statistics.intervals import Summary, summary, time_to_target


@dataclass(frozen=True)
class Goal:
    """What one arm reached. None: it was not asked for, or it has no meaning.

    ``time_s`` is the median of the seconds to the target, infinite where most runs missed it; ``best_s`` and
    ``worst_s`` are of single seeds. ``reached`` of ``runs`` got there, missing runs counted. ``faster`` is the
    baseline's time over this one. ``ppl`` is that at the fixed time, over the runs that lasted so long."""

    label: str
    runs: int
    time_s: float | None
    best_s: float | None
    worst_s: float | None
    reached: int | None
    faster: float | None
    ppl: Summary | None


@dataclass(frozen=True)
class Goals:
    """What all arms reached. ``target_ppl`` and ``at_s`` are common to all runs; None: none was asked for.

    ``left_out`` says why there is none where runs were asked for different ones."""

    target_ppl: float | None
    at_s: float | None
    arms: list[Goal]
    left_out: list[str]


def goals(comparison: Comparison) -> Goals | None:
    """Every arm's goal, in the comparison's order; None where no run had a target or a fixed time."""
    left_out: list[str] = []
    target = _common(comparison, "target_ppl", left_out)
    at_s = _common(comparison, "ppl_at_s", left_out)
    if target is None and at_s is None and not left_out:
        return None
    base = comparison.baseline
    base_time = None if target is None or base is None else _time(base, comparison)
    reached = [_goal(runs, comparison, target, at_s, base_time) for runs in comparison.arms]
    return Goals(target, at_s, reached, left_out)


def _goal(
    runs: ArmRuns, comparison: Comparison, target: float | None, at_s: float | None, base_time: float | None
) -> Goal:
    rows = _counted(runs, comparison)
    time_s = None if target is None else _time(runs, comparison)
    is_known = time_s is not None and base_time is not None and 0 < time_s < math.inf and base_time < math.inf
    ppl = [row.get("ppl_at_fixed_time") for row in rows if not failed(row)] if at_s is not None else []
    lasted = [value for value in ppl if is_number(value)]
    reached = [float(row["time_to_target_ppl_s"]) for row in rows if _has_reached(row)]
    wanted = _wanted(runs, comparison)
    return Goal(
        runs.arm.label,
        wanted,
        time_s,
        None if target is None else min(reached, default=math.inf),
        None if target is None else max(reached) if len(reached) == wanted else math.inf,
        None if target is None else len(reached),
        base_time / time_s if is_known and base_time is not None and time_s is not None else None,
        summary(lasted) if lasted else None,
    )


def _counted(runs: ArmRuns, comparison: Comparison) -> list[Row]:
    """The arm's runs with the baseline's seeds; without a baseline all its runs."""
    base = comparison.baseline
    return [row for seed, row in runs.runs.items() if base is None or seed in base.runs]


def _wanted(runs: ArmRuns, comparison: Comparison) -> int:
    """How many runs the arm should have."""
    return len(runs.runs if comparison.baseline is None else comparison.baseline.runs)


def _time(runs: ArmRuns, comparison: Comparison) -> float:
    """Median seconds to the target, which all runs have in common."""
    rows = _counted(runs, comparison)
    return time_to_target(rows, _wanted(runs, comparison)) if rows else math.inf


def _has_reached(row: Row) -> bool:
    return row.get("status") == "ok" and is_number(row.get("time_to_target_ppl_s"))


def _common(comparison: Comparison, name: str, left_out: list[str]) -> float | None:
    """The setting's value where all runs have the same one; otherwise None, with the reason in ``left_out``."""
    values = {row["config"].get(name) for row in comparison.rows}
    if len(values) > 1:
        left_out.append(
            f"{name} differs among the runs ({', '.join(sorted(map(str, values)))}), so nothing is said of it"
        )
        return None
    value = next(iter(values), None)
    return float(value) if is_number(value) else None
