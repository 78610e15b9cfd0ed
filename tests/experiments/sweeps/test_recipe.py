"""What a recipe may say, and what is said about one that says something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.sweeps.recipe.cells import cells_of
from experiments.sweeps.recipe.recipe import read
from fsdp_lab.settings.config import parse
from tests.experiments.sweeps.fake_trainer import ROOT
from tests.experiments.sweeps.recipes import write_recipe

RECIPES = sorted((ROOT / "experiments" / "recipes").rglob("[!_]*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_committed_recipe_can_be_run(path: Path) -> None:
    recipe = read(path)
    assert recipe.name == path.stem
    assert recipe.about
    cells = cells_of(recipe)
    assert cells[0].arm.is_baseline, "every comparison needs one"
    assert len(cells) >= 3


def test_an_arm_for_every_combination_of_listed_values(tmp_path: Path) -> None:
    arms = [
        {"gradients": {"method": "topk", "ratio": [0.01, 0.1]}, "parameters": ["none", "int8"]},
        {"gradients": ["bf16", {"method": "int4", "hadamard": True, "error_feedback": False}], "comm_dtype": "bf16"},
        {"parameters": {"method": "int8"}},
        "none",
    ]
    found = read(write_recipe(tmp_path, arms=arms)).arms
    assert [arm.label for arm in found] == [
        "none",  # the baseline comes first
        "topk ratio=0.01",
        "topk ratio=0.01 + int8",
        "topk ratio=0.1",
        "topk ratio=0.1 + int8",
        "bf16, reduced in bf16",
        "int4 hadamard no feedback, reduced in bf16",
        "none + int8",
    ]
    assert found[2].settings == {
        "comm_compress": "topk",
        "comm_config_json": {"ratio": 0.01},
        "param_compress": "int8",
        "param_config_json": {},
    }


def test_an_arm_may_be_written_as_figures_name_it(tmp_path: Path) -> None:
    labels = ["none", "int4 hadamard + delta", "topk ratio=0.01 values(qsgd bits=4)", "bf16 + bf16, reduced in bf16"]
    spelled = [
        "none",
        {"gradients": {"method": "int4", "hadamard": True}, "parameters": "delta"},
        {"method": "topk", "ratio": 0.01, "values": {"method": "qsgd", "bits": 4}},
        {"gradients": "bf16", "parameters": "bf16", "comm_dtype": "bf16"},
    ]
    found = read(write_recipe(tmp_path, arms=labels)).arms
    assert [arm.label for arm in found] == labels
    again = read(write_recipe(tmp_path, arms=spelled)).arms
    assert found == again


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_label_of_a_committed_recipe_can_be_typed(path: Path, tmp_path: Path) -> None:
    arms = [arm for arm in read(path).arms if not arm.training and "=" not in arm.label.rpartition(", ")[2]]
    assert read(write_recipe(tmp_path, arms=[arm.label for arm in arms])).arms == arms
    for arm in arms:
        comm = parse(["--comm_compress", arm.label]).comm
        assert {name: getattr(comm, name) for name in arm.settings} == arm.settings


def test_included_keys_are_the_recipes_unless_it_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("seeds: [7]\ncorpus: prose\ncommon: {max_steps: 5, batch_size: 3}\n")
    recipe = read(write_recipe(tmp_path, include="base.yaml", seeds=None, common={"max_steps": 6}))
    assert recipe.seeds == [7]
    path = "fsdp_output/corpora/prose.jsonl.gz"
    assert recipe.common == {"max_steps": 6, "batch_size": 3, "data_path": path}
    assert "include" not in recipe.source


def test_flags_win_and_are_part_of_the_recipe_then(tmp_path: Path) -> None:
    recipe = read(write_recipe(tmp_path), ["--max_steps", "3", "--data_path", "mine.json"])
    assert (recipe.common["max_steps"], recipe.common["data_path"]) == (3, "mine.json")
    again = tmp_path / "again"
    again.mkdir()
    assert read(write_recipe(again, **recipe.source)) == recipe


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arm": ["int8"]}, ["arm: no such key", "did you mean arms?"]),
        ({"name": None}, ["name: missing"]),
        ({"name": "a/b"}, ["name: got 'a/b'"]),
        ({"seeds": 3}, ["seeds: got 3", "a list of whole numbers"]),
        ({"seeds": [1, 1]}, ["seeds: a value is there twice"]),
        ({"seeds": []}, ["seeds: got []"]),
        ({"world_sizes": [0]}, ["world_sizes: got [0]"]),
        ({"world_sizes": [True]}, ["world_sizes: got [True]"]),
        ({"models": None}, ["models: missing"]),
        ({"models": [{"batch_size": 4}]}, ["models[1]: wants either model"]),
        ({"models": [{"model": "gpt2", "batch_sice": 4}]}, ["models[1].batch_sice", "did you mean batch_size?"]),
        ({"common": {"max_step": 4}}, ["common.max_step: no such key; did you mean max_steps?"]),
        ({"common": {"max_steps": "many"}}, ["common.max_steps: got 'many', wants a whole number"]),
        ({"common": {"seed": 4}}, ["common.seed: say it in seeds"]),
        ({"common": {"comm_compress": "int8"}}, ["common.comm_compress: say it in arms"]),
        ({"common": {"results_path": "x"}}, ["common.results_path: the sweep sets it (--out)"]),
        ({"common": {"save_model": True}}, ["common.save_model: say in common.output_dir"]),
        ({"common": 4}, ["common: got 4, wants settings"]),
        ({"corpus": 4}, ["corpus: got 4, wants embedded, prose, full, code or a path"]),
        ({"links": ["200mbi"]}, ["links[1]: rate: got '200mbi'"]),
        ({"links": [{"rate": "1gbit", "lag": "5ms"}]}, ["links[1]: lag: no such key"]),
        ({"tune": {"learning_rte": [1]}}, ["tune.learning_rte: no such key; did you mean learning_rate?"]),
        ({"tune": {"learning_rate": 0.1}}, ["tune: got", "lists of values"]),
        ({"tune": {"comm_dtype": ["bf16"]}}, ["tune.comm_dtype: say it in arms"]),
        ({"tune": {"seed": [1]}}, ["tune.seed: say it in seeds"]),
        ({"arms": []}, ["arms: wants a list of methods"]),
        ({"arms": ["int8 + int8 + int8"]}, ["arms[1]", "3 methods for two directions"]),
        ({"arms": ["none", "int4 hadamrd + delta"]}, ["arms[2]", "did you mean 'hadamard'?"]),
        ({"arms": [{"gradients": "int8 + delta", "parameters": "int4"}]}, ["arms[1]", "says delta for parameters"]),
        ({"arms": ["none", "topq"]}, ["arms[2] (topq)", "did you mean 'topk'?"]),
        ({"arms": [{"gradients": {"method": "topk", "ratio": 2}}]}, ["arms[1] (topk ratio=2)", "at most 1"]),
        ({"arms": [{"gradients": {"method": "topk", "ratios": 0.1}}]}, ["arms[1]", "did you mean 'ratio'?"]),
        ({"arms": [{"gradients": {"ratio": 0.1}}]}, ["arms[1].gradients", "wants a method's name"]),
        ({"arms": [{"parameters": "topk"}]}, ["arms[1] (none + topk)", "does not bring every parameter back"]),
        ({"arms": [{"gradient": "int8"}]}, ["arms[1].gradient: no such key; did you mean gradients?"]),
        ({"arms": [{"comm_dtype": "bf17"}]}, ["arms[1].comm_dtype: got 'bf17', wants one of fp32, bf16, fp16"]),
        ({"arms": ["int8", {"gradients": "int8"}]}, ["arms[2]: 'int8' is there already"]),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"recipe\.yaml: a problem\n") as raised:
        read(write_recipe(tmp_path, **changes))
    for word in words:
        assert word in str(raised.value)


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 problems"):
        read(write_recipe(tmp_path, seeds=3, arms=["topq"]), ["--seed", "4"])


def test_a_setting_that_the_recipe_varies_is_no_flag(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--learning_rate: the recipe varies it"):
        read(write_recipe(tmp_path, tune={"learning_rate": [0.1, 0.2]}), ["--learning_rate", "0.3"])


@pytest.mark.parametrize("text", ["a: [", "- 1", "name: x\nname: y"])
def test_files_that_are_no_recipes(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"r\.yaml: a problem"):
        read(tmp_path / "r.yaml")
    with pytest.raises(ValueError, match="cannot be read"):
        read(tmp_path / "none.yaml")
