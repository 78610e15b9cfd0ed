"""Time to a target, PPL at a time: a miss is infinite, a run that was too short has no value, all are counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from analysis.report.__main__ import main as report
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import Row
from analysis.statistics.goals import Goal, goals
from analysis.tables.comparison import goals_table, main
from experiments.sweeps.recipe.recipe import read as read_recipe
from tests.analysis.planted_rows import arm, died, fair, write

ROOT = Path(__file__).resolve().parents[3]


def timed(method: str, times: list[float | None], ppl: list[float | None], **config: Any) -> list[Row]:
    """A run a seed, with what the trainer writes of its goals."""
    asked = {"target_ppl": 150.0, "ppl_at_s": 15.0} | config
    return [
        Row({
            **row,
            "config": {**row["config"], **asked},
            "reached_target": time is not None,
            "time_to_target_ppl_s": time,
            "ppl_at_fixed_time": at,
        })
        for row, time, at in zip(arm(method), times, ppl, strict=True)
    ]  # fmt: skip


BASE = timed("none", [20.0, 22.0, 24.0], [160.0, 162.0, 164.0])
ROWS = [
    *BASE,
    *timed("bf16", [10.0, 11.0, 12.0], [151.0, 150.0, None]),
    *timed("int8", [9.0, None, 30.0], [170.0, 171.0, 172.0]),
    *timed("int4", [None, None, 8.0], [None, None, None]),
]


def by_label(rows: list[Row]) -> dict[str, Goal]:
    found = goals(comparisons(rows)[0])
    assert found is not None
    return {goal.label: goal for goal in found.arms}


def test_medians_misses_and_runs_that_were_too_short() -> None:
    found = by_label(ROWS)
    assert (found["none"].time_s, found["none"].reached, found["none"].faster) == (22.0, 3, 1.0)
    bf16 = found["bf16 + bf16"]
    assert (bf16.time_s, bf16.best_s, bf16.worst_s, bf16.faster) == (11.0, 10.0, 12.0, 2.0)
    assert bf16.ppl is not None
    assert (bf16.ppl.n, bf16.ppl.mean) == (2, 150.5)
    int8 = found["int8 + int8"]
    assert (int8.time_s, int8.reached, int8.worst_s) == (30.0, 2, math.inf)
    int4 = found["int4 + int4"]
    assert (int4.time_s, int4.reached, int4.faster, int4.ppl) == (math.inf, 1, None, None)


def test_missing_and_failed_runs_have_missed_the_target() -> None:
    lost = Row(
        {
            **died("int8", 3),
            "config": {**ROWS[0]["config"], **died("int8", 3)["config"], "target_ppl": 150.0, "ppl_at_s": 15.0},
        }
    )
    for rows in (
        [*BASE, *timed("int8", [9.0, 9.0, 9.0], [1.0, 1.0, 1.0])[:1]],
        [*BASE, *timed("int8", [9.0, None, 9.0], [1.0] * 3)[:2], lost],
    ):
        found = by_label(rows)["int8 + int8"]
        assert (found.time_s, found.reached, found.runs) == (math.inf, 1, 3)


def test_runs_without_goals_have_no_table_and_unlike_goals_are_named() -> None:
    assert goals(comparisons(fair())[0]) is None
    mixed = comparisons([*BASE, *timed("int8", [9.0] * 3, [1.0] * 3, target_ppl=100.0)])[0]
    found = goals(mixed)
    assert found is not None
    assert (found.target_ppl, found.at_s) == (None, 15.0)
    table = goals_table(mixed, [])
    assert table is not None
    assert "target_ppl differs among the runs (100.0, 150.0)" in table.note


def test_tables_and_report_show_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rows.jsonl", ROWS)
    assert main([str(file), "--markdown"]) == 0
    said = capsys.readouterr().out
    assert report([str(file), "--out", str(tmp_path / "report"), "--formats", "svg"]) == 0
    for text in (said, (tmp_path / "report" / "report.md").read_text(), (tmp_path / "report" / "table.md").read_text()):
        assert "| arm | time to PPL 150 | reached | times as fast | PPL at 15 s | runs that long |" in text
        assert (
            "| bf16 + bf16 | 11.0 s (10.0 s to 12.0 s) | 3 of 3 | 2.00x | 150.5 (sd 0.7), 95 % [144.1, 156.9] |" in text
        )
        assert "| int4 + int4 | never (8.0 s to never) | 1 of 3 | - | - | - |" in text


def test_the_recipe_asks_for_both() -> None:
    recipe = read_recipe(ROOT / "experiments/recipes/links/targets.yaml")
    assert recipe.common["target_ppl"]
    assert recipe.common["ppl_at_s"]
    assert recipe.common["eval_steps"] <= recipe.common["max_steps"] / 20
    assert len(recipe.seeds) >= 3
