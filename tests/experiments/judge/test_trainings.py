"""The trainings of a judged method are those of the reference rows, and what goes wrong in them is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.rows.comparing.settings import setting_of
from experiments.judge import children, trainings
from experiments.sweeps.plan import Plan, past_of, sound_rows
from experiments.sweeps.recipe.cells import cells_of
from experiments.sweeps.recipe.recipe import read
from fsdp_lab.settings.config import parts_of_config
from tests.experiments.sweeps.recipes import row_of

FILE = Path(__file__).parent / "judged" / "stc.py"


@pytest.mark.parametrize("arm", ["none", {"gradients": {"method": "onebit", "group_size": 128}}])
def test_cells_are_those_of_the_reference_rows(arm: Any, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(trainings.recipe(arm, (1, 2, 3)))
    recipe = read(tmp_path / "recipe.yaml")
    rows = sound_rows(trainings.REFERENCE)
    plan = Plan(recipe, cells_of(recipe), past_of(rows), rows, 3)
    assert [plan.state(cell) for cell in plan.cells] == ["finished"] * 3


def test_today_s_rows_are_of_the_reference_rows_setting(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(trainings.recipe("none", (1,)))
    (cell,) = cells_of(read(tmp_path / "recipe.yaml"))
    today = setting_of(row_of(cell, **parts_of_config(cell.config)))
    theirs = json.loads(trainings.REFERENCE.read_text().splitlines()[0])
    assert today.differences(setting_of(theirs)) == []


def test_the_method_is_trained_as_a_plugin_after_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    def start(words: list[str], log: Any, env: dict[str, str], **how: Any) -> subprocess.Popen[bytes]:
        started.append((words, env))
        return subprocess.Popen([sys.executable, "-c", "pass"], start_new_session=True)

    monkeypatch.setattr(children, "start", start)
    rows, baseline = tmp_path / "out" / "rows.jsonl", tmp_path / "none.jsonl"
    rows.parent.mkdir()
    assert trainings.run(FILE, "stc", {"ratio": 0.1}, rows, baseline, (1,), 60) == ""
    (first, _), (second, env) = started
    assert first[-1] == str(baseline)
    assert second[-1] == str(rows)
    assert '"method": "stc"' in Path(second[2]).read_text()
    plugin = Path(env["PYTHONPATH"].split(":")[0])
    assert (plugin / "judged_method-0.dist-info" / "entry_points.txt").exists()


def test_a_training_that_fails_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(words: list[str], log: Any, **how: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "print('no such corpus'); exit(2)"], stdout=log)

    monkeypatch.setattr(children, "start", start)
    why = trainings.run(FILE, "stc", {}, tmp_path / "rows.jsonl", tmp_path / "none.jsonl", (1,), 60)
    assert "trainings without compression: exit code 2" in why
    assert "no such corpus" in why
