"""The common start of a recipe's cells: what may be said of it, and that it is trained once, by a stand-in."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments import sweep
from experiments.sweeps import common_start
from experiments.sweeps.common_start import ensure
from experiments.sweeps.obstacles import obstacles
from experiments.sweeps.recipe.cells import cells_of
from experiments.sweeps.recipe.complaints import RecipeError
from experiments.sweeps.recipe.recipe import read
from experiments.sweeps.recipe.start import Start
from experiments.sweeps.recipe.trainers import LANGUAGE_MODEL, TRAINERS
from fsdp_lab import results
from tests.experiments.sweeps import recipes
from tests.experiments.sweeps.fake_trainer import ROOT
from tests.experiments.sweeps.recipes import write_recipe

START = {"model": "gpt2-nano", "max_steps": 20}
MODELS = [{"model_dir": "start"}]


def start_in(folder: Path, **changes: Any) -> Start:
    (found,) = read(write_recipe(folder, models=MODELS, start={**START, **changes})).starts
    return found


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The stand-in trains, in an empty working directory; the command line of each training."""
    begun: list[Sequence[str]] = []

    def command(module: str, flags: Sequence[str], ranks: int) -> list[str]:
        virtual = "virtual_ranks: 3" in Path(flags[-1]).read_text()
        assert (module, ranks) == ("fsdp_lab.train", 1 if virtual else 2)
        begun.append(flags)
        return [sys.executable, "-m", "tests.experiments.sweeps.fake_trainer", *flags]

    monkeypatch.setattr(common_start, "torchrun_command", command)
    monkeypatch.setattr(common_start, "_POLL_S", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return begun


def test_cells_begin_with_it_and_its_folder_is_named_by_what_affects_it(tmp_path: Path) -> None:
    recipe = read(write_recipe(tmp_path, models=[{**MODELS[0], "batch_size": 3}, "gpt2-nano"], start=START))
    (start,) = recipe.starts
    assert [cell.config.resolved()["model_dir"] for cell in cells_of(recipe)[:4:2]] == [str(start.folder), None]
    assert start_in(tmp_path).folder == start.folder
    for changes in ({"max_steps": 21}, {"seed": 1}, {"learning_rate": 0.5}, {"corpus": "prose"}):
        assert start_in(tmp_path, **changes).folder != start.folder, changes
    assert start_in(tmp_path, log_interval=3).folder == start.folder


def test_a_model_may_have_a_start_of_its_own_and_a_corpus(tmp_path: Path) -> None:
    models = [
        *MODELS,
        {"start": {"model": "llama-nano"}, "corpus": "prose", "max_steps": 5},
        {"start": {}, "batch_size": 3},
    ]
    recipe = read(write_recipe(tmp_path, models=models, start=START))
    common, own = recipe.starts  # the third one's is the common one
    assert (own.config.model.model, own.config.optim.max_steps) == ("llama-nano", 20)
    cells = cells_of(recipe)[::2]  # of both arms the first
    assert [cell.config.resolved()["model_dir"] for cell in cells[:2]] == [str(common.folder), str(own.folder)]
    assert [cell.varied["max_steps"] for cell in cells[:2]] == ["10", "5"]
    assert [Path(cell.varied["data_path"]).name for cell in cells[:2]] == ["None", "prose.jsonl.gz"]


def test_a_common_start_that_no_model_names_is_not_trained(tmp_path: Path) -> None:
    recipe = read(write_recipe(tmp_path, models=["gpt2-nano", {"start": {"model": "llama-nano"}}], start=START))
    assert [start.config.model.model for start in recipe.starts] == ["llama-nano"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start": {"model": "gpt2-nano"}}, "start.max_steps: missing"),
        ({"start": {**START, "max_step": 3}}, "start.max_step: no such key; did you mean max_steps?"),
        ({"start": {**START, "max_steps": "many"}}, "start.max_steps: got 'many'"),
        ({"start": {**START, "comm_compress": "int8"}}, "start.comm_compress: nothing is compressed on the way"),
        ({"start": {**START, "output_dir": "x"}}, "start.output_dir: the sweep sets it"),
        ({"start": {**START, "model": "gpt2-nanno"}}, "did you mean gpt2-nano"),
        ({"start": {**START, "corpus": 3}}, "corpus: got 3"),
        ({"start": "gpt2-nano"}, "start: got 'gpt2-nano'"),
        ({"models": [{"start": {"model": "gpt2-nano"}}]}, "models[1].start.max_steps: missing"),
        ({"models": [{"start": 3}]}, "models[1].start: got 3"),
        ({"models": [{"start": START, "model": "gpt2-nano"}]}, "models[1]: wants either model"),
        ({"models": [{"model": "gpt2-nano", "corpus": 3}]}, "models[1].corpus: got 3"),
        ({}, "models[1].model_dir: start is what the key start describes, which the recipe lacks"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError) as refused:
        read(write_recipe(tmp_path, **{"models": MODELS, **changes}))
    assert words in str(refused.value)


def test_it_is_no_obstacle_but_what_it_lacks_is_one(tmp_path: Path) -> None:
    recipe = read(write_recipe(tmp_path, models=MODELS, start=START))
    assert obstacles(cells_of(recipe), recipe.starts) == []
    assert "model_dir" in obstacles(cells_of(recipe))[0]
    recipe = read(write_recipe(tmp_path, models=MODELS, start={**START, "corpus": str(tmp_path / "no.jsonl")}))
    assert [str(tmp_path / "no.jsonl") in line for line in obstacles(cells_of(recipe), recipe.starts)] == [True]


@pytest.mark.parametrize("changes", [{}, {"virtual_ranks": 3}])  # the stand-in sees two ranks, or one that plays three
def test_it_is_trained_once_and_nothing_else_is_left(
    trainings: list[Any], tmp_path: Path, changes: dict[str, Any]
) -> None:
    start, said = start_in(tmp_path, **changes), list[str]()
    for _ in range(2):
        ensure(start, said.append)
    assert len(trainings) == 1
    assert (start.folder / "config.json").is_file()
    assert os.listdir(start.folder.parent) == [start.folder.name]
    assert len(said) == 1


def test_two_sweeps_at_once_train_it_once(trainings: list[Any], tmp_path: Path) -> None:
    start, said = start_in(tmp_path), list[str]()
    both = [threading.Thread(target=ensure, args=(start, said.append)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert start.is_there
    assert len(trainings) == 1
    assert any("another sweep trains" in line for line in said)


def test_a_training_that_fails_is_said_and_leaves_no_start(
    trainings: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = start_in(tmp_path, seed=13)
    with pytest.raises(ValueError, match=r"exit code 3; all it said is in .*log\.txt"):
        ensure(start, lambda line: None)
    assert "out of memory" in capsys.readouterr().err
    assert not start.is_there
    assert len(trainings) == 1


def test_a_stopped_one_goes_on(trainings: list[Any], tmp_path: Path) -> None:
    start = start_in(tmp_path, seed=16)
    training = start.folder.with_name(f"{start.folder.name}.training")

    def stop() -> None:
        while not (training / "ready").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    with pytest.raises(SystemExit) as stopped:
        ensure(start, lambda line: None)
    assert stopped.value.code == 143
    assert not start.is_there
    (training / "go").touch()
    rows = training / "row.jsonl"
    kept: list[dict[str, Any]] = []
    ensure_and_keep(start, rows, kept)
    assert [(row["status"], row["resumed_at_steps"]) for row in kept] == [("preempted", []), ("ok", [3])]


def ensure_and_keep(start: Start, rows: Path, kept: list[dict[str, Any]]) -> None:
    """Train it, and read its rows before they are thrown away."""
    rename = os.rename

    def read_first(source: Path, target: Path) -> None:
        kept.extend(results.load(rows))
        rename(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common_start.os, "rename", read_first)
        ensure(start, lambda line: None)


def test_a_sweep_trains_it_before_its_cells(
    trainings: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TRAINERS, LANGUAGE_MODEL.name, recipes.quick())
    recipe = str(write_recipe(tmp_path, models=MODELS, start=START, seeds=[1]))
    assert sweep.main([recipe, "--dry_run"]) == 0
    assert "to be trained first" in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        sweep.main([recipe, "--slurm", str(tmp_path / "slurm")])
    assert refused.value.code == 2
    assert "first train the common start" in capsys.readouterr().err
    assert sweep.main([recipe, "--out", "rows.jsonl"]) == 0
    assert [row["status"] for row in results.load(tmp_path / "rows.jsonl")] == ["ok", "ok"]
    assert len(trainings) == 1
    assert sweep.main([recipe, "--start_only"]) == 0
    assert len(trainings) == 1
    two = str(write_recipe(tmp_path, models=[*MODELS, {"start": {"seed": 2}}], start=START, seeds=[1]))
    assert sweep.main([two, "--out", "rows.jsonl"]) == 0  # what is there already is not trained again
    assert len(trainings) == 2
