"""Which runs a recipe is, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.sweeps.recipe.cells import cells_of, key_of, varying
from experiments.sweeps.recipe.recipe import read
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.models.presets import resolve
from tests.experiments.sweeps.recipes import row_of, write_recipe


def test_every_arm_has_a_seed_before_any_has_the_next(tmp_path: Path) -> None:
    recipe = read(write_recipe(tmp_path, world_sizes=[1, 2], tune={"learning_rate": [0.1, 0.2]}))
    cells = cells_of(recipe)
    assert [cell.number for cell in cells] == list(range(1, 17))
    assert [cell.seed for cell in cells] == [1] * 8 + [2] * 8
    assert [cell.arm.label for cell in cells] == ["none", "int8"] * 8
    assert [cell.processes for cell in cells[:8]] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert [cell.config.optim.learning_rate for cell in cells[:4]] == [0.1, 0.1, 0.2, 0.2]
    assert varying(cells) == ["ranks", "learning_rate"]


def test_a_cell_is_the_run_that_the_trainer_would_make_of_the_same_flags(tmp_path: Path) -> None:
    cell = cells_of(read(write_recipe(tmp_path)))[1]
    flags = {"model": "gpt2-nano", "seed": 1, "max_steps": 10, "max_length": 16, "batch_size": 2}
    for has_gpu in (False, True):
        assert resolve(TrainConfig.of(**flags, comm_compress="int8"), has_gpu).digest() == cell.key.config_hash
    assert cell.work == 10 * 2 * 16


def test_seed_arm_ranks_and_link_make_cells_different(tmp_path: Path) -> None:
    links = [None, "none", "200mbit", {"rate": "200mbit", "delay": "5ms"}]
    cells = cells_of(read(write_recipe(tmp_path, world_sizes=[2, 4], links=links)))
    assert len({cell.key for cell in cells}) == len(cells) == 2 * 2 * 2 * 4
    assert [cells[i].key[2:] for i in (0, 2, 4, 6)] == [(None, None), (None, 0), (2e8, 0), (2e8, 5)]
    for cell in cells:
        assert key_of(row_of(cell)) == cell.key


def test_a_row_from_before_a_setting_was_added_is_still_the_cells(tmp_path: Path) -> None:
    cell, other = cells_of(read(write_recipe(tmp_path)))[:2]
    row = row_of(cell, config_hash="of fewer settings")
    del row["config"]["fsdp_reshard"]
    assert key_of(row) == cell.key
    row["config"]["fsdp_reshard"] = False
    row["config"]["of_old"] = 1
    assert key_of(row).config_hash == "of fewer settings"
    assert cell.key != other.key


def test_settings_of_a_model_win_over_common_ones(tmp_path: Path) -> None:
    models = ["gpt2-nano", {"model": "gpt2-nano", "batch_size": 4, "learning_rate": 0.1}]
    cells = cells_of(read(write_recipe(tmp_path, models=models)))
    assert [(c.config.optim.batch_size, c.config.optim.learning_rate) for c in cells[::2]][:2] == [(2, 0.004), (4, 0.1)]


def test_one_run_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="test: cells 1 and 3 are the same run"):
        cells_of(read(write_recipe(tmp_path, models=["gpt2-nano", {"model": "gpt2-nano", "batch_size": 2}])))


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="test: model: no preset 'gpt5'"):
        cells_of(read(write_recipe(tmp_path, models=["gpt5"])))


def test_what_an_optimizer_cannot_use_is_refused_before_the_first_cell(tmp_path: Path) -> None:
    models = [{"model": "gpt2-nano", "optimizer": "muon"}]
    arms = ["none", {"gradients": "none", "optimizer_compress": "ecsq step=1"}]
    with pytest.raises(ValueError, match="optimizer_compress: ecsq with error_feedback is for gradients only"):
        cells_of(read(write_recipe(tmp_path, models=models, arms=arms, world_sizes=[2])))
    arms[1] = {"gradients": "none", "optimizer_compress": "delta values(ecsq step=1)"}
    assert len(cells_of(read(write_recipe(tmp_path, models=models, arms=arms, world_sizes=[2], seeds=[1])))) == 2
