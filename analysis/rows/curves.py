"""The course of runs over training: curve files, and what an arm's seeds have in common.

A curve file holds one JSON object a line (`fsdp_lab/run/curve.py` lists the keys); a row names it in ``loss_curve``,
relative to the results file. A file that is missing or has half a line is reported, never fatal.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from analysis.rows.arms import Arm, ArmRuns, Comparison, failed
from analysis.rows.curve_archive import ArchiveError, read_curve_file
from analysis.rows.reading import Row, is_number

Along = Literal["step", "tokens", "train_seconds"]
Values = dict[int, float]  # by step


@dataclass(frozen=True)
class Course:
    """A quantity of one arm at the steps that all its ``seeds`` have, first step first; lists of equal length.

    ``x``: steps, tokens or seconds (mean over the seeds) at ``steps``. ``low``, ``high``: least and greatest seed.
    ``ended``: how many of its seeds failed or diverged, which is why the course may end early.
    """

    arm: Arm
    steps: list[int]
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    by_seed: dict[int, list[float]]
    ended: int = 0

    @property
    def seeds(self) -> int:
        """How many."""
        return len(self.by_seed)


@dataclass(frozen=True)
class Courses:
    """``left_out``: a line for each run without a usable curve."""

    courses: list[Course] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def courses(comparison: Comparison, quantity: str, along: Along = "step", smooth: int = 1) -> Courses:
    """``quantity``, a key of curve files, of every arm that has it.

    ``smooth``: each seed's values are replaced by the mean of so many neighbours, itself in the middle (odd; fewer at
    both ends). ValueError when it is not odd, or when no curve has the quantity (and ``along``)."""
    if smooth < 1 or smooth % 2 == 0:
        raise ValueError(f"smooth: got {smooth}, wants an odd number of points")
    found = Courses()
    for runs in comparison.arms:
        by_seed: dict[int, Lines] = {}
        ended = 0
        for seed, row in runs.runs.items():
            lines, why = read_curve(row)
            found.left_out.extend(f"{row.get('run_name')}: {text}" for text in why)
            if _finite(lines, quantity):
                by_seed[seed] = lines
                ended += failed(row)
        course = _course(runs, by_seed, quantity, along, smooth, ended) if by_seed else None
        if course is not None:
            found.courses.append(course)
    if not found.courses:
        advice = "; ".join(found.left_out[:3]) or "the runs did not record it"
        what = quantity if along == "step" else f"{quantity} and {along}"
        raise ValueError(f"no curve with {what} in the comparison ({comparison.setting.label}): {advice}")
    return found


def read_curve(row: Row) -> tuple[list[dict[str, Any]], list[str]]:
    """The lines of a row's curve file, and what is wrong with it."""
    path = row.curve
    if path is None:
        return [], ["its row names no loss curve"]
    return read_lines(path)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The objects of a curve file that have a step, and complaints with line numbers."""
    try:
        raw = read_curve_file(path).split(b"\n")
    except OSError as error:
        return [], [f"no curve: cannot read {path} ({error.strerror})"]
    except ArchiveError as error:
        return [], [f"no curve: {error}"]
    lines, complaints = [], []
    for number, text in enumerate(raw, start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict) and is_number(line.get("step")):
            lines.append(line)
        else:
            complaints.append(f"{path}, line {number} left out: no whole line of a curve")
    return lines, complaints


def _finite(lines: Sequence[Mapping[str, Any]], quantity: str) -> Values:
    """By step, up to the first that is not finite: what comes after a divergence is no course of training."""
    values: Values = {}
    for line in lines:
        if quantity in line:
            if not is_number(line[quantity]):
                break
            values[int(line["step"])] = float(line[quantity])
    return values


Lines = Sequence[Mapping[str, Any]]


def _course(
    runs: ArmRuns, by_seed: Mapping[int, Lines], quantity: str, along: Along, smooth: int, ended: int
) -> Course | None:
    """None when the seeds have no step in common of which it is known where it lies: virtual ranks have no seconds."""
    values = {seed: _finite(lines, quantity) for seed, lines in by_seed.items()}
    shared = sorted(set.intersection(*(set(found) for found in values.values())))
    x = {step: place for step in shared if (place := _place(by_seed, step, along)) is not None}
    if not x:
        return None
    smoothed = {seed: _smooth([found[step] for step in x], smooth) for seed, found in values.items()}
    return _over_seeds(runs.arm, list(x), list(x.values()), smoothed, ended)


def above(course: Course, base: Course) -> Course | None:
    """How far ``course`` is above ``base``, seed by seed at the steps that both have; None when they share none."""
    seeds = [seed for seed in course.by_seed if seed in base.by_seed]
    theirs = {step: place for place, step in enumerate(base.steps)}
    places = [(place, theirs[step]) for place, step in enumerate(course.steps) if step in theirs]
    if not seeds or not places:
        return None
    by_seed = {seed: [course.by_seed[seed][i] - base.by_seed[seed][j] for i, j in places] for seed in seeds}
    steps, x = [course.steps[i] for i, _ in places], [course.x[i] for i, _ in places]
    return _over_seeds(course.arm, steps, x, by_seed, course.ended)


def _over_seeds(arm: Arm, steps: list[int], x: list[float], by_seed: dict[int, list[float]], ended: int) -> Course:
    across = list(zip(*by_seed.values(), strict=True))
    mean, low, high = ([float(of(found)) for found in across] for of in (statistics.fmean, min, max))
    return Course(arm, steps, x, mean, low, high, by_seed, ended)


def _place(by_seed: Mapping[int, Lines], step: int, along: Along) -> float | None:
    """The mean over the seeds that know it."""
    if along == "step":
        return float(step)
    at_step = (line.get(along) for lines in by_seed.values() for line in lines if line["step"] == step)
    found = [float(place) for place in at_step if is_number(place)]
    return statistics.fmean(found) if found else None


def _smooth(values: list[float], points: int) -> list[float]:
    half = points // 2
    return [statistics.fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
