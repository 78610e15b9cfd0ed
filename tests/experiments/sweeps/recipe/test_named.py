"""Recipes by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.sweeps.recipe.named import FOLDER, recipe_file


def test_a_name_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert recipe_file("user_model").samefile(FOLDER / "links" / "user_model.yaml")
    monkeypatch.chdir(FOLDER.parents[1])
    assert str(recipe_file("user_model")) == "experiments/recipes/links/user_model.yaml"
    monkeypatch.chdir(tmp_path)
    assert recipe_file("user_model").is_absolute()


def test_what_recipes_include_is_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    included = [path.stem for path in FOLDER.rglob("_*.yaml")]
    assert included
    for name in (*included, *(name.removeprefix("_") for name in included)):
        with pytest.raises(ValueError, match="none of that name"):
            recipe_file(name)


def test_no_two_have_the_same_name() -> None:
    names = [path.stem for path in FOLDER.rglob("*.yaml")]
    assert len(names) == len(set(names)) > 40


def test_a_file_comes_before_a_recipe_of_that_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smoke").write_text("name: mine")
    assert recipe_file("smoke") == Path("smoke")


@pytest.mark.parametrize("said", ["experiments/recipes/user_model.yaml", "user_modle", "recipes/links/user-model"])
def test_one_that_lies_elsewhere_or_is_mistyped_is_found(said: str) -> None:
    with pytest.raises(ValueError, match=r"did you mean user_model, which is .*links/user_model\.yaml\?"):
        recipe_file(said)


def test_nothing_like_it_is_said_to_be_meant(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is none of that name$"):
        recipe_file("my.yaml")
    with pytest.raises(ValueError, match="that is a folder"):
        recipe_file(str(tmp_path))
