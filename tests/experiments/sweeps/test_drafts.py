"""Sweeps of drafts: the same machinery, other settings; one of them for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import sweep
from experiments.sweeps.estimate import Estimator
from experiments.sweeps.launch import command_of, config_of, record
from experiments.sweeps.obstacles import obstacles
from experiments.sweeps.recipe.cells import cells_of, key_of
from experiments.sweeps.recipe.recipe import read
from experiments.sweeps.recipe.trainers import EAGLE, LANGUAGE_MODEL, trainer_of
from fsdp_lab import results
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.settings.reading.cli import parse_as
from tests.experiments.sweeps import recipes
from tests.experiments.sweeps.fake_trainer import ROOT
from tests.fsdp_lab.eagle.test_train import chats
from tests.fsdp_lab.eagle.tiny import save_target

COMMON: dict[str, Any] = {"data_path": "chats.jsonl", "max_steps": 2, "batch_size": 3}
DRAFTS: dict[str, Any] = {"trainer": "eagle", "models": None, "targets": ["a/target"], "common": COMMON}


def write_recipe(folder: Path, **changes: Any) -> Path:
    return recipes.write_recipe(folder, **{**DRAFTS, **changes})


def test_a_cell_is_the_run_that_the_trainer_would_make_of_the_same_flags(tmp_path: Path) -> None:
    targets = ["a/target", {"target_dir": "b/target", "data_path": "its_own.jsonl"}]
    cells = cells_of(read(write_recipe(tmp_path, targets=targets, world_sizes=[2])))
    assert [cell.config.eagle.target_dir for cell in cells[:4:2]] == ["a/target", "b/target"]
    assert [cell.config.eagle.data_path for cell in cells[:4:2]] == ["chats.jsonl", "its_own.jsonl"]
    flags = ["--target_dir", "a/target", "--seed", "1", "--comm_compress", "int8"]
    flags += [word for name, value in COMMON.items() for word in (f"--{name}", str(value))]
    assert cells[1].key.config_hash == parse_as(EagleConfig, flags).digest()
    assert cells[1].work == 2 * 3 * 2, "conversations"
    config = config_of(cells[1], "name", tmp_path / "rows.jsonl", tmp_path / "out")
    assert isinstance(config, EagleConfig)
    assert command_of(cells[1], Path("s.yaml"))[-3:] == ["fsdp_lab.eagle.train", "--config", "s.yaml"]
    row = record(cells[1], config, "failed", "lost", tmp_path / "rows.jsonl")
    assert (row["model"], row["draft_target"]) == ("draft-of-target", "a/target")
    assert (key_of(row), trainer_of(row)) == (cells[1].key, EAGLE)
    language_model = cells_of(read(recipes.write_recipe(tmp_path)))[0]
    assert trainer_of(recipes.row_of(language_model)) is LANGUAGE_MODEL


def test_links_run_the_same_program(tmp_path: Path) -> None:
    alone, behind = (cells_of(read(write_recipe(tmp_path, links=[link])))[0] for link in (None, "1gbit"))
    command = command_of(behind, Path("s.yaml"))
    assert command[command.index("--") + 1 :] == command_of(alone, Path("s.yaml"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trainer": "eagel"}, ["trainer: got 'eagel', wants language_model or eagle"]),
        ({"models": ["gpt2-nano"]}, ["models: for language models; a draft has targets"]),
        ({"corpus": "prose"}, ["corpus: for language models; a draft has common.data_path"]),
        ({"trainer": None, "models": ["gpt2-nano"], "common": {}}, ["targets: for drafts (trainer: eagle)"]),
        ({"virtual_world_sizes": [8]}, ["virtual_world_sizes: a draft is trained by real ranks"]),
        ({"common": {**COMMON, "virtual_ranks": 2}}, ["common.virtual_ranks: a draft is trained by real ranks"]),
        ({"common": {**COMMON, "target_dir": "x"}}, ["common.target_dir: say it in targets"]),
        ({"common": {**COMMON, "val_fraction": 0.1}}, ["common.val_fraction: no such key"]),
        ({"common": {**COMMON, "steps_ahed": 3}}, ["common.steps_ahed: no such key; did you mean steps_ahead?"]),
        ({"targets": None}, ["targets: missing, wants a list such as [saved/target]"]),
        ({"targets": [{"data_path": "x"}]}, ["targets[1]: wants target_dir (a folder)"]),
        ({"tune": {"steps_ahead": [0]}}, ["tune.steps_ahead: got 0, wants a whole number, at least 1"]),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"recipe\.yaml: a problem\n") as raised:
        read(write_recipe(tmp_path, **changes))
    for word in words:
        assert word in str(raised.value)


def test_settings_that_do_not_go_together_are_refused_with_the_arm(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"arms": ["none", {"parameters": "int8"}]}
    with pytest.raises(ValueError, match=r"test: none \+ int8: param_compress: would round the frozen target's"):
        cells_of(read(write_recipe(tmp_path, **changes, common={**COMMON, "shard_target": True})))
    with pytest.raises(ValueError, match="test: none: data_path: missing"):
        cells_of(read(write_recipe(tmp_path, **changes, common={"max_steps": 2})))


def test_flags_are_those_of_the_drafts_trainer(tmp_path: Path) -> None:
    recipe = read(write_recipe(tmp_path), ["--data_path", "other.jsonl", "--steps_ahead", "2"])
    assert (recipe.common["data_path"], recipe.common["steps_ahead"]) == ("other.jsonl", 2)
    (tmp_path / "again").mkdir()
    assert read(recipes.write_recipe(tmp_path / "again", **{"models": None, **recipe.source})) == recipe
    with pytest.raises(ValueError, match="--val_fraction: no such flag"):
        read(write_recipe(tmp_path), ["--val_fraction", "0.1"])
    targets = [{"target_dir": "a", "data_path": "b"}]
    with pytest.raises(ValueError, match="--data_path: the recipe varies it"):
        read(write_recipe(tmp_path, targets=targets), ["--data_path", "other.jsonl"])


def test_all_that_one_command_builds_is_one_message() -> None:
    cells = cells_of(read(ROOT / "experiments" / "recipes" / "drafts" / "drafts.yaml"))
    folder = Path("fsdp_output/drafts")
    if folder.exists():
        pytest.skip("it has been built here")
    these = f"targets: {folder}/target, data_path: {folder}/training.jsonl, eval_data: {folder}/held_out.jsonl"
    assert obstacles(cells) == [f"{these} are not there; build them: fsdp-lab eagle run"]


def test_times_are_scaled_by_conversations_of_drafts_alone(tmp_path: Path) -> None:
    small, large = (
        cells_of(read(write_recipe(tmp_path, common={**COMMON, "max_steps": steps})))[0] for steps in (10, 30)
    )
    rows = []
    for cell, seconds in ((small, 20.0), (cells_of(read(recipes.write_recipe(tmp_path)))[0], 500.0)):
        times = {"wall_time_s": 5 + seconds, "train_time_s": seconds, "hardware": {"cpu": "x"}}
        rows.append(recipes.row_of(cell, **times, steps=10, batch_size=3, gradient_accumulation_steps=1))
    found = Estimator(rows, "f", "x")
    assert found.seconds(large) == 5 + 3 * 20
    assert "estimated by conversations from" in found.basis([large])


def test_a_sweep_of_drafts(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    save_target(tmp_path / "target")
    data = str(chats(tmp_path / "chats.jsonl"))
    small = {"draft_vocab_size": 40, "steps_ahead": 2, "max_length": 60, "threads": 1, "grad_error_every": 0}
    judged = {"eval_data": data, "eval_prompts": 2, "eval_max_new_tokens": 4, "num_drafts": 2}
    changes: dict[str, Any] = {"targets": [str(tmp_path / "target")], "seeds": [1]}
    recipe = write_recipe(tmp_path, **changes, common={**COMMON, "data_path": data, **small, **judged})
    words = [str(recipe), "--out", str(tmp_path / "rows.jsonl")]
    assert sweep.main(words) == 0
    said = capsys.readouterr()
    rows = results.load(tmp_path / "rows.jsonl")
    assert [(row["compress_method"], row["status"], row["tau_prompts"]) for row in rows] == [
        ("none", "ok", 2),
        ("int8", "ok", 2),
    ]
    assert all(1 <= row["tau"] <= 3 for row in rows)
    assert rows[0]["data_digest"] == rows[1]["data_digest"]
    heading, first = said.err.splitlines()[2:4]  # after the cells that there are, and what the sweep decides
    assert heading.split()[3:5] == ["status", "tau"]
    assert first.split()[3:5] == ["ok", f"{rows[0]['tau']:.3f}"]
    assert "mean tau" in said.out
    assert f"next: fsdp-lab drafts {tmp_path / 'rows.jsonl'}" in said.out
    assert not (tmp_path / "rows.jsonl.cells").exists()
    assert sweep.main([*words, "--", "--max_steps", "2"]) == 0
    assert "2 finished, 0 failed, 0 to run" in capsys.readouterr().err
