"""Times to a loss: steps from curves, the time of a step from wherever it is known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from analysis.predict.calibration import Calibration
from analysis.predict.predictor import Predictor
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import Row
from analysis.statistics.time_to_quality import measured_rates, step_times, times
from tests.analysis import planted, planted_curves, planted_rows
from tests.analysis.planted_curves import loss
from tests.analysis.planted_rows import row

EVALUATED = range(20, 101, 20)


def first(seed: int, worse: float, target: float) -> float:
    return next((float(step) for step in EVALUATED if loss(step, seed, worse) <= target), math.inf)


def two_arms(folder: Path) -> list[Row]:
    return planted_curves.arm(folder, "none") + planted_curves.arm(folder, "int8", worse=0.03)


def test_steps_come_from_evaluations_and_the_median_counts_misses(tmp_path: Path) -> None:
    (comparison,) = comparisons(two_arms(tmp_path))
    target = 5.04
    found = times(comparison, [], [None], math.exp(target), predictor=None)
    for reached, worse in zip(found.reached, (0.0, 0.03), strict=True):
        assert reached.steps == {seed: first(seed, worse, target) for seed in (1, 2, 3)}
    assert found.reached[1].misses == 1  # the seed with the highest loss
    assert not found.times
    assert found.left_out[1] == "int8 + int8: its step was neither measured nor calibrated without a limit"


def test_measured_steps_of_the_same_work_only(tmp_path: Path) -> None:
    rows = two_arms(tmp_path)
    (comparison,) = comparisons(rows)
    links = [
        row("int8", 1, link_rate_asked=1e8, step_time_ms_p50=200.0),
        row("int8", 2, link_rate_asked=1e8, step_time_ms_p50=400.0),
        row("int8", 1, link_rate_asked=1e8, step_time_ms_p50=9e9, world_size=4),
        row("int8", 1, link_rate_asked=1e8, step_time_ms_p50=9e9, link_delay_ms=5.0),
        row("int8", 1, link_rate_asked=1e8, step_time_ms_p50=9e9, max_length=256),
        planted_rows.died("int8", 3, link_rate_asked=1e8),
    ]
    assert measured_rates([*rows, *links], comparison) == [1e8, None]
    arm = comparison.arm("int8 + int8").arm
    assert step_times([*rows, *links], comparison)[arm, 1e8] == pytest.approx(0.3)
    found = times(comparison, [*rows, *links], [1e8, None], math.exp(5.1))
    behind = next(time for time in found.times if time.arm == arm and time.rate == 1e8)
    steps = sorted(first(seed, 0.03, 5.1) for seed in (1, 2, 3))
    assert behind.source == "measured"
    assert (behind.low, behind.seconds, behind.high) == pytest.approx(tuple(0.3 * step for step in steps))


def test_steps_that_were_not_measured_are_predicted(tmp_path: Path) -> None:
    (comparison,) = comparisons(two_arms(tmp_path))
    predictor = Predictor(Calibration(planted.document()), "blocks", 2)
    found = times(comparison, [], [1e8], math.exp(5.1), predictor)
    assert [time.source for time in found.times] == ["predicted", "predicted"]
    step = predictor.step_s("none + none", 1e8)
    assert found.times[0].low == pytest.approx(step * min(first(seed, 0.0, 5.1) for seed in (1, 2, 3)))


def test_seven_digits_of_a_curve_are_no_miss(tmp_path: Path) -> None:
    rows = planted_curves.arm(tmp_path, "none")
    for r in rows:
        file = tmp_path / r["loss_curve"]
        lines = [json.loads(text) for text in file.read_text().splitlines()]
        lines[-1]["val_loss"] += 4e-7
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    last = math.exp(max(r["val_loss"] for r in rows))
    assert times(comparisons(rows)[0], rows, [None], last).reached[0].misses == 0


def test_the_target_is_one_percent_above_what_every_run_of_the_baseline_reaches(tmp_path: Path) -> None:
    rows = two_arms(tmp_path)
    found = times(comparisons(rows)[0], rows, [None])
    worst = max(r["val_ppl"] for r in rows if r["compress_method"] == "none")
    assert found.target_ppl == pytest.approx(1.01 * worst)
    assert found.margin == 0.01
    assert found.reached[0].misses == 0
    near = planted_curves.arm(tmp_path, "int8", worse=0.005)  # half a percent: within the bar, above the baseline
    assert times(comparisons([*rows[:3], *near])[0], rows, [None]).reached[1].misses == 0
    with pytest.raises(ValueError, match="no baseline to take the target from"):
        times(comparisons(rows[3:])[0], rows, [None])


def test_a_failed_run_has_missed_the_target_even_without_a_curve(tmp_path: Path) -> None:
    rows = [*two_arms(tmp_path), Row(dict(planted_rows.died("bf16", 1)), tmp_path / "results.jsonl")]
    found = times(comparisons(rows)[0], rows, [None])
    assert found.reached[2].steps == {1: math.inf}


def test_curves_without_evaluations_say_what_to_do(tmp_path: Path) -> None:
    rows = [Row(dict(r), tmp_path / "results.jsonl") for r in planted_rows.arm("none")]
    with pytest.raises(ValueError, match="train with --eval_steps 20"):
        times(comparisons(rows)[0], rows, [None])
