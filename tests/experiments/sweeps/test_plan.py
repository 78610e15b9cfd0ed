"""What is done, what is to do, and how long it takes: planted rows with known answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.sweeps.estimate import Estimator
from experiments.sweeps.plan import Plan, describe, past_of
from experiments.sweeps.progress import summary
from experiments.sweeps.recipe.cells import Cell, cells_of
from experiments.sweeps.recipe.recipe import read
from experiments.sweeps.text import duration
from tests.experiments.sweeps.recipes import row_of, write_recipe

HERE = {"git_commit": "c", "hardware": {"cpu": "x", "cores": 2, "gpus": []}}


def planned(folder: Path, rows: Any = lambda cells: [], retry_failed: bool = False, **changes: Any) -> Plan:
    recipe = read(write_recipe(folder, **changes))
    cells = cells_of(recipe)
    made = rows(cells)
    return Plan(recipe, cells, past_of(made), made, len(cells), retry_failed)


def states(plan: Plan) -> list[str]:
    return [plan.state(cell) for cell in plan.cells]


def test_finished_cells_are_skipped_failed_ones_tried_twice_and_stopped_ones_again(tmp_path: Path) -> None:
    def rows(c: list[Cell]) -> list[dict[str, Any]]:
        ended = [(0, "ok"), (1, "failed"), (2, "failed"), (2, "failed"), (3, "preempted"), (3, "preempted")]
        return [row_of(c[i], status) for i, status in ended]

    plan = planned(tmp_path, rows)
    assert states(plan) == ["finished", "to run", "failed", "to run"]
    assert [plan.tries_left(cell) for cell in plan.to_run()] == [1, 2]
    again = planned(tmp_path, rows, retry_failed=True)
    assert states(again) == ["finished", "to run", "to run", "to run"]
    assert [again.tries_left(cell) for cell in again.to_run()] == [1, 2, 2]


def test_a_cell_that_failed_and_then_went_well_is_finished(tmp_path: Path) -> None:
    assert states(planned(tmp_path, lambda c: [row_of(c[0], s) for s in ("failed", "failed", "ok")]))[0] == "finished"


def test_the_plan_says_what_it_rests_on(tmp_path: Path) -> None:
    def rows(c: list[Cell]) -> list[dict[str, Any]]:
        elsewhere = {"git_commit": "d", "hardware": {**HERE["hardware"], "cpu": "y"}}
        return [row_of(c[0], **HERE), row_of(c[1], **elsewhere)]

    plan = planned(tmp_path, rows, about="a test", tune={"learning_rate": [0.1, 0.2]})
    text = describe(plan, Path("rows.jsonl"), Estimator([], "nowhere"), 1, HERE)
    for line in (
        "test: a test",
        "cells      8 = 2 arms x 2 seeds x 2 learning_rate values",
        "finished   2 (of them 1 at another commit, 1 on other hardware; they count)",
        "to run     6",
        "tuning     the same for every arm: learning_rate 0.1, 0.2",
        "time       unknown: no finished run of these models to go by (--rows FILE names some)",
    ):
        assert line in text.splitlines(), line
    table = [line.split() for line in text.splitlines()[-9:]]
    assert table[0] == ["cell", "seed", "learning_rate", "arm", "state", "time"]
    assert table[1] == ["1", "1", "0.1", "none", "finished"]
    assert table[3] == ["3", "1", "0.2", "none", "to", "run", "unknown"]


def took(cell: Cell, wall: float, training: float, tokens: int, cpu: str = "x", **fields: Any) -> dict[str, Any]:
    seconds = {"wall_time_s": wall, "train_time_s": training, "tokens_seen": tokens}
    return row_of(cell, **seconds, hardware={"cpu": cpu}, **fields)


def test_times_are_scaled_by_tokens_from_the_most_alike_run(tmp_path: Path) -> None:
    cells = planned(tmp_path, world_sizes=[1, 2]).cells  # 320 and 640 tokens
    none, int8 = cells[0], cells[1]
    assert Estimator([], "f", "x").seconds(none) is None
    one = Estimator([took(none, 30, 20, 160)], "f", "x")
    assert one.seconds(none) == 10 + 20 * 2, "twice the tokens; start and end once"
    assert one.seconds(int8) == 50, "another arm's time, for want of its own"
    assert one.seconds(cells[2]) == 10 + 20 * 4, "other ranks, by tokens"
    two = Estimator([took(none, 30, 20, 160), took(int8, 100, 100, 320)], "f", "x")
    assert [two.seconds(cell) for cell in cells[:2]] == [50, 100]
    assert two.total([none, int8]) == (150, 0)
    assert "from 2 finished runs in f, of the same arms" in two.basis([none, int8])


def test_runs_of_this_machine_come_first_and_failed_ones_do_not_count(tmp_path: Path) -> None:
    (none, int8, *_) = planned(tmp_path).cells
    rows = [took(none, 500, 500, 320, cpu="y"), took(none, 50, 50, 320), took(none, 9, 9, 320, status="failed")]
    assert Estimator(rows, "f", "x").seconds(none) == 50
    assert ", of other machines" not in Estimator(rows, "f", "x").basis([none])
    assert Estimator(rows[:1], "f", "x").seconds(int8) == 500
    assert ", of other machines" in Estimator(rows[:1], "f", "x").basis([int8])
    text = describe(planned(tmp_path), Path("r"), Estimator(rows, "f", "x"), 2, HERE)
    assert "about 1 min 40 s, 2 cells at once (estimated by tokens from 2 finished runs in f" in text


def test_without_a_number_of_steps_nothing_is_promised(tmp_path: Path) -> None:
    plan = planned(tmp_path, common={"num_epochs": 1})
    assert plan.cells[0].work is None
    assert Estimator([took(plan.cells[0], 50, 50, 320)], "f", "x").total(plan.cells) == (0, 4)


def test_a_failed_seed_is_not_averaged_away(tmp_path: Path) -> None:
    def rows(c: list[Cell]) -> list[dict[str, Any]]:
        fine = [row_of(c[i], val_ppl=ppl, step_time_ms_p50=100.0) for i, ppl in ((0, 10.0), (2, 20.0), (1, 5.0))]
        return [*fine, row_of(c[3], "failed"), row_of(c[3], "failed")]

    lines = [" ".join(line.split()) for line in summary(planned(tmp_path, rows)).splitlines()]
    assert lines == ["arm seeds mean PPL ms/step", "none 2 of 2 15.00 100", "int8 1 of 2 1 failed 100"]


@pytest.mark.parametrize(("seconds", "text"), [(59.4, "59 s"), (60, "1 min 00 s"), (7499, "2 h 05 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
