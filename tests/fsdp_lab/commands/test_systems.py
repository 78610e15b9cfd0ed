"""`fsdp-lab systems`: the list, one system, and names that are not there."""

from __future__ import annotations

import json

import pytest

from fsdp_lab.commands.systems import main
from fsdp_lab.settings.systems.missing import MISSING
from fsdp_lab.settings.systems.table import SYSTEMS, recipes


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_the_list_has_every_recipe_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys).splitlines()
    for name in recipes():
        assert any(line.startswith(f"{name} ") for line in lines)
    for missing in MISSING:
        assert any(line.startswith(f"  {missing.name} ") for line in lines)
    assert all(len(line) <= 120 for line in lines)


def test_a_page_says_how_each_recipe_is_run_and_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    for system in SYSTEMS:
        page = said(capsys, system.name)
        words = " ".join(page.split())
        for recipe in system.recipes:
            assert f" --system {recipe.name}\n" in page
            assert said(capsys, recipe.name) == page
        for text in system.differs:
            assert " ".join(text.replace("`", "").split()) in words
        assert system.paper is None or f"arXiv {system.paper.arxiv}" in words
        assert "`" not in page


def test_bits_are_summed_over_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert "at most 20.5 a parameter and step" in " ".join(said(capsys, "zero++").split())
    assert "gathered once, so at most 8.266" in " ".join(said(capsys, "sdp4bit").split())


def test_json_is_the_same_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    everything = json.loads(said(capsys, "--json"))
    assert [one["name"] for one in everything["systems"]] == [system.name for system in SYSTEMS]
    assert json.loads(said(capsys, "zero++-qgz", "--json"))["name"] == "zero++"


@pytest.mark.parametrize(
    ("name", "words"),
    [("sdp4bits", "did you mean sdp4bit?"), ("SCAPE", "scape cannot be run here: it chooses")],
)
def test_an_unknown_name_is_refused(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main([name])
    assert ending.value.code == 2
    assert words in capsys.readouterr().err
