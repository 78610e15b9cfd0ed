"""The command around cells: what stands in the way, how the machine is divided, what the user sees."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import sweep
from experiments.sweeps import obstacles
from experiments.sweeps.estimate import Estimator
from experiments.sweeps.launch import command_of, config_of, new_run_name
from experiments.sweeps.plan import Plan, past_of
from experiments.sweeps.progress import Progress
from experiments.sweeps.recipe.cells import cells_of
from experiments.sweeps.recipe.recipe import read
from experiments.sweeps.slots import Slot, divide, gpus_here, too_large, warning
from fsdp_lab.run.storage.curve import Curve
from fsdp_lab.settings.config import parse
from tests.experiments.sweeps.recipes import row_of, write_recipe


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as raised:
        sweep.main(words)
    assert raised.value.code == 2
    return capsys.readouterr().err


def test_a_dry_run_shows_the_plan_and_touches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path, corpus="prose")
    assert sweep.main([str(recipe), "--dry_run", "--out", str(tmp_path / "no" / "rows.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "cells      4 = 2 arms x 2 seeds" in out
    assert "results/reference" in out, "the times of other runs of this model"
    if not Path("fsdp_output/corpora/prose.jsonl.gz").exists():
        assert "not yet possible here: corpus: fsdp_output/corpora/prose.jsonl.gz is not there; build it: " in out
        assert "fsdp-lab data build prose" in refused([str(recipe)], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_what_is_missing_is_said_before_the_first_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstacles, "unavailable", lambda: "network namespaces need root; start this with sudo")
    models = [{"model_dir": "no/such"}]
    recipe = write_recipe(tmp_path, links=["1gbit"], corpus="none.json", models=models)
    said = refused([str(recipe), "--out", str(tmp_path / "r.jsonl")], capsys)
    for line in ("corpus: none.json is not there", "models: model_dir no/such is not there", "links: network namespa"):
        assert line in said
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "5"], "--only: got 5, the plan has cells 1 to 4"),
        (["--jobs", "0"], "--jobs: got '0'"),
        (["--rows", "no.jsonl", "--dry_run"], "--rows: got 'no.jsonl', wants a file"),
        (["--", "--max_step", "3"], "--max_step: no such flag; did you mean --max_steps?"),
        (["--", "--seed", "3"], "--seed: say it in seeds"),
    ],
)
def test_wrong_flags(tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused([str(write_recipe(tmp_path)), *words], capsys)


def test_the_machine_is_divided_between_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert divide(1, range(8), ["0", "1"]) == [Slot()]
    assert divide(2, range(8), ["4", "5", "6", "7"]) == [
        Slot((0, 1, 2, 3), ("4", "5")),
        Slot((4, 5, 6, 7), ("6", "7")),
    ]
    assert divide(3, [5, 6], []) == [Slot((5,)), Slot((6,)), Slot((5,))]
    assert Slot(None, ("4", "5")).environment() == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert [slot.gpus for slot in divide(3, range(8), ["4", "5"])] == [("4",), ("5",), ("4",)], "processes share a GPU"
    assert warning(2, range(8), ["4", "5"]) is None
    assert "share them; step times mean nothing" in str(warning(3, range(8), ["4", "5"]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert gpus_here() == ["3", "5"]
    cells = cells_of(read(write_recipe(tmp_path, world_sizes=[4])))
    assert too_large(cells, divide(2, range(8), list("abcdefgh")), list("abcdefgh")) is None
    assert "4 ranks need as many GPUs, a cell has 2" in str(too_large(cells, divide(2, range(8), list("abcd")), "abcd"))
    assert too_large(cells, [Slot()], []) is None
    assert "a cell has 1" in str(too_large(cells, divide(3, range(8), list("ab")), list("ab")))
    start = {"model": "gpt2-nano", "max_steps": 5}
    real = read(write_recipe(tmp_path, models=[{"model_dir": "start"}], start=start)).starts
    assert "start: 2 ranks need as many GPUs, and 1 is here" in str(too_large([], [Slot()], ["0"], real))
    assert too_large([], [Slot()], [], real) is None
    assert too_large([], [Slot()], ["0", "1"], real) is None
    virtual = {**start, "virtual_ranks": 2}
    played = read(write_recipe(tmp_path, models=[{"model_dir": "start"}], start=virtual)).starts
    assert too_large([], [Slot()], ["0"], played) is None


def test_times_of_cells_that_share_cores_are_no_times() -> None:
    assert warning(1, range(2), []) is None
    assert warning(4, range(2), ["0", "1", "2", "3"]) is None
    assert "their step times mean nothing" in str(warning(2, range(2), []))
    assert "there are only 2" in str(warning(3, range(2), []))


def test_how_a_cell_is_started(tmp_path: Path) -> None:
    alone, two, behind = (
        cells_of(read(write_recipe(tmp_path, **changes)))[0]
        for changes in ({}, {"world_sizes": [2]}, {"world_sizes": [2], "links": [{"rate": "1gbit", "delay": "5ms"}]})
    )
    settings = Path("s.yaml")
    assert command_of(alone, settings)[1:] == ["-m", "fsdp_lab.train", "--config", "s.yaml"]
    assert command_of(two, settings)[-6:] == ["--nproc-per-node=2", "-m", "--", "fsdp_lab.train", "--config", "s.yaml"]
    link = ["-m", "experiments.links", "--rate", "1gbit", "--delay", "5ms", "--ranks", "2", "--"]
    assert command_of(behind, settings)[1:] == [*link, *command_of(alone, settings)]


def test_what_a_cell_is_told_is_what_it_reads(tmp_path: Path) -> None:
    cell = cells_of(read(write_recipe(tmp_path, arms=[{"gradients": {"method": "topk", "ratio": 0.1}}])))[0]
    name = new_run_name(cell)
    assert name.startswith("topk,ratio=0.1-gpt2-nano-1-s1-")
    config = config_of(cell, name, tmp_path / "rows.jsonl", tmp_path / "out")
    (tmp_path / "s.yaml").write_text(config.to_yaml())
    assert parse(["--config", str(tmp_path / "s.yaml")]) == config
    assert config.digest() == cell.key.config_hash
    assert (config.run.curves_dir, config.run.save_model) == (str(tmp_path / "curves"), False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_live_line_says_how_far_a_cell_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    recipe = read(write_recipe(tmp_path))
    cells = cells_of(recipe)
    screen = Terminal()
    progress = Progress(Plan(recipe, cells, past_of([]), [], 4), Estimator([], "f", "x"), 1, screen)
    run: Any = SimpleNamespace(curves_dir=str(tmp_path), run_name="r")
    attempt: Any = SimpleNamespace(cell=cells[0], config=SimpleNamespace(run=run), started=time.monotonic())
    progress.tick([attempt], cells[1:])
    assert screen.getvalue().endswith("running 1/4 none seed 1: starting, 0 s; left unknown")
    curve = Curve(tmp_path / "r.jsonl")
    curve.add(step=4, train_loss=1.0)
    curve.add(step=6, train_loss=1.0)
    progress.tick([attempt], cells[1:])
    assert screen.getvalue().endswith("running 1/4 none seed 1: step 6 of 10, 0 s; left unknown")
    took = {"wall_time_s": 60.0, "train_time_s": 60.0, "tokens_seen": 320, "val_ppl": 12.5, "step_time_ms_p50": 40.0}
    progress.ended(cells[0], row_of(cells[0], **took), 61, cells[1:])
    lines = screen.getvalue().split("\n")
    assert lines[0].endswith("\r\x1b[K     cell  seed  arm   status          PPL  ms/step          took  left")
    assert " ".join(lines[1].split()) == "1/4 1 none ok 12.50 40 1 min 01 s about 3 min 00 s"


def test_a_results_file_with_bad_lines_is_read_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path)
    cells = cells_of(read(recipe))
    good = json.dumps(row_of(cells[0]))
    (tmp_path / "rows.jsonl").write_text(f'{good}\n{{"schema_version": 99}}\n[]\n{good[:50]}')
    assert sweep.main([str(recipe), "--dry_run", "--out", str(tmp_path / "rows.jsonl")]) == 0
    assert "finished   1 " in capsys.readouterr().out
