"""When a run reaches a validation loss behind each link: the step at which it does, times the time of a step there.

The step comes from the evaluations in the runs' curves, and does not depend on the link. The time of a step is
**measured** where some row of the same arm, model and world size ran behind that link (its median step), and else
**predicted** by the model of a step (`analysis.predict`) from a calibration of the machine. A run that never reaches
the target takes for ever, and so does one that failed; the median over seeds counts them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.canonical import canonical
from analysis.rows.comparing.comparisons import ArmRuns, Comparison, failed
from analysis.rows.comparing.setting_roles import LATER
from analysis.rows.curves.points import NOTHING, curves_of
from analysis.rows.reading import Row, is_number
from analysis.statistics.answers import MARGIN

Source = Literal["measured", "predicted"]
Rate = float | None  # bit/s; None: no limit
_ROUNDING = 2e-6  # nats: curve files have seven digits
# which rows' step times belong to a comparison
_SAME_WORK = (
    "model",
    "model_dir",
    "batch_size",
    "max_length",
    "gradient_accumulation_steps",
    "mixed_precision",
    "operators",
)


class Predicts(Protocol):
    """Says how long a step takes, as `analysis.predict.predictor.Predictor` does."""

    def step_s(self, method: str, bits_per_s: float | None, bucket: float = 0.0) -> float:
        """Seconds of a step by ``method`` (its label) behind a link of ``bits_per_s``; None: without a limit."""
        ...


@dataclass(frozen=True)
class Reached:
    """When an arm's seeds reached the target.

    ``steps`` by seed: the step of the first evaluation at or below the target; infinite: the run never got there."""

    arm: Arm
    steps: dict[int, float]

    @property
    def misses(self) -> int:
        """How many seeds never reached the target."""
        return sum(math.isinf(steps) for steps in self.steps.values())


@dataclass(frozen=True)
class Time:
    """How long an arm takes to the target behind one link.

    ``seconds`` is the median over the seeds, infinite for a miss; ``low`` and ``high`` are the best seed and the worst.
    """

    arm: Arm
    rate: Rate
    seconds: float
    low: float
    high: float
    source: Source


@dataclass(frozen=True)
class Times:
    """The times of all arms behind all links.

    ``target_loss`` is in nats a token; ``margin`` is by how much its PPL is above the baseline's, None when the target
    was given. ``left_out`` has a line of text for each arm and link of which nothing is known."""

    target_loss: float
    margin: float | None
    reached: list[Reached]
    times: list[Time]
    left_out: list[str]

    @property
    def target_ppl(self) -> float:
        """The target loss as a perplexity."""
        return math.exp(self.target_loss)


class MeasuredSteps:
    """How long the steps of many rows took, sorted by what was computed in them.

    Every comparison of a report asks for the steps of its own work behind other links, and all rows may have them: so
    all are looked through once, and each one's arm is made once."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[tuple[str, ...], list[Row]] = {}
        self._seconds: dict[tuple[str, ...], dict[tuple[Arm, Rate], float]] = {}
        for row in rows:
            if not failed(row) and is_number(row.get("step_time_ms_p50")) and not row.get("link_delay_ms"):
                self._rows.setdefault(_work(row), []).append(row)

    def of(self, comparison: Comparison) -> dict[tuple[Arm, Rate], float]:
        """Seconds of a step by arm and link: the median over the rows with the comparison's work on as many ranks."""
        work = _work(next(row for runs in comparison.arms for row in runs.runs.values()))
        if work not in self._seconds:
            seconds: dict[tuple[Arm, Rate], list[float]] = {}
            for row in self._rows.get(work, []):
                seconds.setdefault((Arm.of(row), row.get("link_rate_asked")), []).append(row["step_time_ms_p50"] / 1e3)
            self._seconds[work] = {key: statistics.median(values) for key, values in seconds.items()}
        return self._seconds[work]


def _work(row: Row) -> tuple[str, ...]:
    """What is computed in the row's steps, as texts: ranks, and the settings `_SAME_WORK`."""
    config = row["config"]
    return tuple(canonical(value) for value in (row["world_size"], *(config.get(n, LATER.get(n)) for n in _SAME_WORK)))


def times(
    comparison: Comparison,
    rows: Iterable[Row] | MeasuredSteps,
    rates: Sequence[Rate],
    target_ppl: float | None = None,
    predictor: Predicts | None = None,
) -> Times:
    """The time of every arm of ``comparison`` behind every one of ``rates``. ``rows`` are all rows, also those behind
    links, or their steps.

    ``target_ppl`` is by default `MARGIN` above the highest final PPL among the baseline's runs, the most that an arm
    may lose by the bar of `statistics.answers`. (With the baseline's own PPL as the target an arm would miss it for 0.1
    %.) ValueError when there is no target, or no curve with evaluations."""
    target = _target(comparison) if target_ppl is None else math.log(target_ppl)
    result = Times(target, MARGIN if target_ppl is None else None, [], [], [])
    for runs in comparison.arms:
        reached = _reached(runs, target, result.left_out)
        if reached is not None:
            result.reached.append(reached)
    if not result.reached:
        why = "; ".join(result.left_out[:3])
        raise ValueError(f"time to quality: no curve has evaluations ({why}); train with --eval_steps 20")
    measured = step_times(rows, comparison)
    for reached in result.reached:
        unknown = []
        for rate in rates:
            step, source = _step_s(reached.arm, rate, measured, predictor)
            if step is None:
                unknown.append(_behind(rate))
                continue
            seconds = [steps * step for steps in reached.steps.values()]
            result.times.append(Time(reached.arm, rate, statistics.median(seconds), min(seconds), max(seconds), source))
        if unknown:
            links = ", ".join(unknown)
            result.left_out.append(f"{reached.arm.label}: its step was neither measured nor calibrated {links}")
    return result


def step_times(rows: Iterable[Row] | MeasuredSteps, comparison: Comparison) -> dict[tuple[Arm, Rate], float]:
    """Seconds of a step by arm and link: the median over the rows with the comparison's work on as many ranks."""
    return (rows if isinstance(rows, MeasuredSteps) else MeasuredSteps(rows)).of(comparison)


def measured_rates(rows: Iterable[Row] | MeasuredSteps, comparison: Comparison) -> list[Rate]:
    """The links that `step_times` has, the fastest last (no limit)."""
    rates = {rate for _, rate in step_times(rows, comparison)}
    return sorted(rates, key=lambda rate: math.inf if rate is None else rate)


def _target(comparison: Comparison) -> float:
    if comparison.baseline is None:
        raise ValueError("time to quality: no baseline to take the target from; give target_ppl")
    finished = [float(row["val_loss"]) for row in comparison.baseline.ended_well]
    if not finished:
        raise ValueError("time to quality: no run of the baseline finished; give target_ppl")
    return max(finished) + math.log1p(MARGIN)


def _reached(runs: ArmRuns, target: float, left_out: list[str]) -> Reached | None:
    """The steps at which the arm's seeds reached the target; None when no seed has evaluations during training.

    A seed that failed without a curve has missed the target, too."""
    steps: dict[int, float] = {}
    for seed, (curve, why) in curves_of(runs).items():
        row = runs.runs[seed]
        evaluations = sorted(curve.get("val_loss", NOTHING).known)
        if not evaluations and not failed(row):
            left_out.append(f"{row.get('run_name')}: {'; '.join(why) or 'its curve has no evaluation'}")
            continue
        steps[seed] = next((step for step, loss in evaluations if loss <= target + _ROUNDING), math.inf)
    return Reached(runs.arm, steps) if steps else None


def _step_s(
    arm: Arm, rate: Rate, measured: Mapping[tuple[Arm, Rate], float], predictor: Predicts | None
) -> tuple[float | None, Source]:
    if (arm, rate) in measured:
        return measured[arm, rate], "measured"
    try:
        return (None if predictor is None else predictor.step_s(_calibrated_name(arm), rate)), "predicted"
    except ValueError:  # a method that was not calibrated
        return None, "predicted"


def _calibrated_name(arm: Arm) -> str:
    """The arm's name in a calibration, as `experiments.links.calibrate` writes it: both directions, always."""
    return arm.label if arm.parameters != "none" else f"{arm.label} + none"


def _behind(rate: Rate) -> str:
    return "without a limit" if rate is None else f"at {rate / 1e6:g} Mbit/s"
