"""Curve files read, and what an arm's seeds have in common."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.curves.files import read_lines
from analysis.rows.curves.of_arms import above, training_curves
from analysis.rows.reading import Row
from tests.analysis import planted_curves, planted_rows
from tests.analysis.planted_curves import loss


def test_the_mean_over_seeds_and_its_range(tmp_path: Path) -> None:
    (comparison,) = comparisons(planted_curves.arm(tmp_path, "int8", worse=0.1))
    (curve,) = training_curves(comparison, "train_loss").curves
    assert curve.steps == list(range(10, 101, 10))
    expected = [sum(loss(step, seed, 0.1) for seed in (1, 2, 3)) / 3 for step in curve.steps]
    assert curve.mean == pytest.approx(expected)
    assert curve.low == pytest.approx([loss(step, 1, 0.1) for step in curve.steps])
    assert curve.high == pytest.approx([loss(step, 3, 0.1) for step in curve.steps])
    assert (curve.seeds, curve.ended) == (3, 0)


@pytest.mark.parametrize(("along", "last"), [("step", 100), ("tokens", 102_400), ("train_seconds", 10.0)])
def test_along_steps_tokens_or_seconds(tmp_path: Path, along: str, last: float) -> None:
    (comparison,) = comparisons(planted_curves.arm(tmp_path, "int8"))
    assert training_curves(comparison, "val_loss", along).curves[0].x[-1] == pytest.approx(last)  # type: ignore[arg-type]


def test_virtual_ranks_have_steps_and_no_seconds(tmp_path: Path) -> None:
    rows = planted_curves.arm(tmp_path, "int8")
    for row in rows:
        file = tmp_path / row["loss_curve"]
        lines = [json.loads(text) | {"train_seconds": None} for text in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (comparison,) = comparisons(rows)
    assert training_curves(comparison, "val_loss").curves[0].x[-1] == 100
    with pytest.raises(ValueError, match="no curve with val_loss and train_seconds"):
        training_curves(comparison, "val_loss", "train_seconds")


def test_differences_are_paired_by_seed_and_step(tmp_path: Path) -> None:
    rows = planted_curves.arm(tmp_path, "none") + planted_curves.arm(tmp_path, "int8", worse=0.2)
    found = training_curves(comparisons(rows)[0], "train_loss").curves
    difference = above(found[1], found[0])
    assert difference is not None
    for curve in (difference.mean, difference.low, difference.high):  # the seeds' noise is gone
        assert curve == pytest.approx([0.2 * step / 100 for step in difference.steps])


def test_smoothing_takes_neighbours_from_both_sides(tmp_path: Path) -> None:
    (comparison,) = comparisons(planted_curves.arm(tmp_path, "int8", seeds=(1,)))
    raw, smooth = (training_curves(comparison, "train_loss", smooth=points).curves[0].mean for points in (1, 3))
    assert smooth[4] == pytest.approx(sum(raw[3:6]) / 3)
    assert smooth[0] == pytest.approx(sum(raw[:2]) / 2)
    with pytest.raises(ValueError, match="smooth: got 2, wants an odd number"):
        training_curves(comparison, "train_loss", smooth=2)


def test_a_run_that_stopped_ends_its_arms_curve(tmp_path: Path) -> None:
    rows = planted_curves.arm(tmp_path, "int8", seeds=(1, 2))
    rows.append(planted_curves.run(tmp_path, planted_rows.died("int8", 3), last_step=50))
    (curve,) = training_curves(comparisons(rows)[0], "train_loss").curves
    assert (curve.steps[-1], curve.seeds, curve.ended) == (50, 3, 1)


def test_a_loss_that_is_not_finite_ends_a_curve(tmp_path: Path) -> None:
    (row,) = planted_curves.arm(tmp_path, "int8", seeds=(1,))
    lines = [json.loads(text) for text in (tmp_path / row["loss_curve"]).read_text().splitlines()]
    for line in lines:
        if line["step"] == 40 and "train_loss" in line:
            line["train_loss"] = None
    (tmp_path / row["loss_curve"]).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert training_curves(comparisons([row])[0], "train_loss").curves[0].steps == [10, 20, 30]


def test_a_missing_curve_is_reported_and_the_others_remain(tmp_path: Path) -> None:
    rows = planted_curves.arm(tmp_path, "int8")
    (tmp_path / rows[1]["loss_curve"]).unlink()
    found = training_curves(comparisons(rows)[0], "train_loss")
    assert sorted(found.curves[0].by_seed) == [1, 3]
    (complaint,) = found.left_out
    assert complaint.startswith("int8-int8-2: no curve: cannot read")


def test_half_a_line_is_reported_by_number(tmp_path: Path) -> None:
    file = tmp_path / "curve.jsonl"
    file.write_text('{"step": 1, "train_loss": 5.0}\n{"step": 2, "train_lo')
    lines, complaints = read_lines(file)
    assert [line["step"] for line in lines] == [1]
    assert complaints == [f"{file}, line 2 left out: no whole line of a curve"]


def test_no_curve_at_all_is_an_error_that_says_why(tmp_path: Path) -> None:
    (comparison,) = comparisons([Row(dict(planted_rows.row("int8")), tmp_path / "results.jsonl")])
    with pytest.raises(ValueError, match=r"no curve with train_loss .*: int8-int8-1: its row names no loss curve"):
        training_curves(comparison, "train_loss")
