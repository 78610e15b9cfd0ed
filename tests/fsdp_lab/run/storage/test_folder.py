"""Who may write a run's folder, and what a start that is refused leaves of it: nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsdp_lab.checkpoint import NOT_BEGUN
from fsdp_lab.run.storage.folder import held, name_of, writing_model
from fsdp_lab.run.storage.paths import Paths
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.reading.fields import ConfigError

ALONE: Any = SimpleNamespace(is_first=True, broadcast=lambda value: value)


def config_in(folder: Path) -> TrainConfig:
    return TrainConfig.of(output_dir=str(folder), results_path=str(folder / "results.jsonl"))


def paths_in(folder: Path) -> Paths:
    return Paths.of(config_in(folder).run, "mine", "final_model")


def test_runs_that_begin_in_one_second_have_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdp_lab.run.storage.folder.default_run_name", lambda method, model: f"{method}-{model}-now")
    config = config_in(tmp_path)
    names = []
    for _ in range(3):
        names.append(name_of(config, "final_model"))
        Paths.of(config.run, names[-1], "final_model").folder.mkdir(parents=True)
    assert names == [f"none-{config.trained}-now{end}" for end in ("", "_2", "_3")]
    named = replace(config, run=replace(config.run, run_name="mine"))
    assert name_of(named, "final_model") == "mine"


def test_a_new_folder_is_marked_as_not_begun_and_locked_while_it_is_held(tmp_path: Path) -> None:
    config, paths = config_in(tmp_path), paths_in(tmp_path)
    with held(paths, config, ALONE) as is_resumed:
        assert not is_resumed
        assert paths.settings.read_text() == config.to_yaml()
        with pytest.raises(ConfigError, match="is being written by process"), held(paths, config, ALONE):
            pass
    assert sorted(path.name for path in paths.folder.iterdir()) == ["config.yaml", NOT_BEGUN]
    with held(paths, config, ALONE) as is_resumed:
        assert is_resumed, "a run that has not begun begins again"


def test_a_name_that_is_taken_is_refused_and_a_new_folder_of_that_name_goes_again(tmp_path: Path) -> None:
    config, paths = config_in(tmp_path), paths_in(tmp_path)
    elsewhere = replace(paths, curve=tmp_path / "curves" / "mine.jsonl")
    elsewhere.curve.parent.mkdir()
    elsewhere.curve.touch()
    with pytest.raises(ConfigError, match=r"mine\.jsonl exists already"), held(elsewhere, config, ALONE):
        pass
    assert not paths.folder.exists()
    paths.folder.mkdir(parents=True)
    (paths.folder / "other").touch()
    with pytest.raises(ConfigError, match="runs/mine exists already"), held(paths, config, ALONE):
        pass
    assert [path.name for path in paths.folder.iterdir()] == ["other"]


def test_half_a_model_does_not_stay_but_what_was_there_does(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)

    def fail() -> None:
        with writing_model(paths, ALONE):
            paths.model.mkdir(parents=True, exist_ok=True)
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="final_model"):
        fail()
    assert not paths.model.exists()
    paths.model.mkdir(parents=True)
    with pytest.raises(OSError, match="final_model"):
        fail()
    assert paths.model.exists()
