"""Both stages of the chart: every arm is one that figures name alike, and is judged at the rate chosen for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.comparing.setting_roles import TRAINING as OF_ROWS
from analysis.rows.reading import Row
from experiments.sweeps.obstacles import obstacles
from experiments.sweeps.recipe.arms import TRAINING
from experiments.sweeps.recipe.cells import Cell, cells_of
from experiments.sweeps.recipe.complaints import RecipeError
from experiments.sweeps.recipe.rates import key
from experiments.sweeps.recipe.recipe import Recipe, read
from fsdp_lab.settings.groups import OptimConfig
from fsdp_lab.settings.reading.specs import specs_of
from tests.experiments.sweeps.fake_trainer import ROOT
from tests.experiments.sweeps.recipes import row_of, write_recipe

RECIPES = ROOT / "experiments" / "recipes" / "chart"


@pytest.fixture(scope="module")
def tuning() -> list[Cell]:
    return cells_of(read(RECIPES / "chart_rates.yaml"))


def as_row(cell: Cell) -> Row:
    return Row({**row_of(cell), **cell.config.row(), "world_size": cell.world_size})


def recipe_with(folder: Path, chosen: dict[str, Any], **changes: Any) -> Recipe:
    rates = folder / "rates.json"
    rates.write_text(json.dumps({"chosen": chosen}))
    return read(write_recipe(folder, arms=["none", "int8 + delta"], rates=str(rates), **changes))


def test_what_moves_weights_is_all_that_optimizers_have_of_their_own() -> None:
    assert set(TRAINING) == set(OF_ROWS), "each is a setting of the trainer"
    of_one_optimizer = [
        spec.name for spec in specs_of(OptimConfig) if spec.name.startswith(("muon_", "demo_", "dion_", "adam_"))
    ]
    assert set(of_one_optimizer) - {"adam_beta1", "adam_beta2"} <= set(TRAINING), "no optimizer's settings are left out"


def test_arms_are_called_as_figures_call_them_and_make_one_comparison(tuning: list[Cell]) -> None:
    rows = [as_row(cell) for cell in tuning]
    for cell, row in zip(tuning, rows, strict=True):
        assert key(cell.arm) == Arm.of(row, across_training=True).label
    (comparison,) = comparisons(rows, across_training=True)
    assert comparison.baseline is not None
    assert {runs.candidates for runs in comparison.arms} == {4}
    assert len(comparison.arms) * 4 == len(tuning)


def test_the_second_stage_has_the_first_ones_arms_on_other_seeds(tuning: list[Cell]) -> None:
    judged = read(RECIPES / "chart.yaml")
    assert [arm.label for arm in judged.arms] == list(dict.fromkeys(cell.arm.label for cell in tuning))
    assert not set(judged.seeds) & {cell.seed for cell in tuning}
    assert not judged.tune


def test_rates_come_from_the_file(tmp_path: Path) -> None:
    chosen = {"none": {"learning_rate": 0.003}, "int8 + delta": {"learning_rate": 0.001}}
    cells = cells_of(recipe_with(tmp_path, chosen))
    assert {(cell.arm.label, cell.config.optim.learning_rate) for cell in cells} == {
        ("none", 0.003),
        ("int8 + delta", 0.001),
    }


def test_without_the_file_nothing_runs(tmp_path: Path) -> None:
    recipe = read(write_recipe(tmp_path, rates="nowhere.json"))
    (line,) = obstacles(cells_of(recipe), recipe.starts, recipe.rates)
    assert line == (
        "rates: nowhere.json is not there; tune first, then choose: fsdp-lab chart rates ROWS.jsonl --out nowhere.json"
    )


def test_rates_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"has none for int8 \+ delta; tune these arms, too"):
        recipe_with(tmp_path, {"none": {"learning_rate": 0.003}})
    with pytest.raises(RecipeError, match="the recipe tunes, too"):
        recipe_with(tmp_path, {"none": {}, "int8 + delta": {}}, tune={"learning_rate": [0.1]})
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(RecipeError, match="was not written by `fsdp-lab chart rates`"):
        read(write_recipe(tmp_path, rates=str(tmp_path / "bad.json")))


def test_optimizers_that_do_not_fit_are_named_before_anything_runs(tmp_path: Path) -> None:
    arms = ["none", {"system": "demo", "optimizer": "demo"}]
    with pytest.raises(ValueError, match="demo is of several replicas; give dp_replicas 2 or more"):
        cells_of(read(write_recipe(tmp_path, arms=arms, world_sizes=[2])))
    text = yaml.safe_dump({"optimizer": "sgd"})
    with pytest.raises(RecipeError, match=r"arms\[2\]\.optimizer"):
        read(write_recipe(tmp_path, arms=["none", yaml.safe_load(text)]))
