"""`fsdp-lab methods`: the list, a page for each method, and names that are not there."""

from __future__ import annotations

import json

import pytest

import comm_compress as cc
from fsdp_lab.commands.methods import main
from fsdp_lab.commands.reference.methods_file import Methods, read


@pytest.fixture(scope="module")
def content() -> Methods:
    return read()


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_the_list_has_every_method_with_its_bits(content: Methods, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys).splitlines()
    for method in content["methods"]:
        line = next(line for line in lines if line.startswith(f"{method['name']} "))
        assert f" {method['bits']:.4g} " in line
    assert all(len(line) <= 120 for line in lines)


def test_a_page_has_every_setting_with_an_example(content: Methods, capsys: pytest.CaptureFixture[str]) -> None:
    for method in content["methods"]:
        page = said(capsys, method["name"])
        for setting in method["settings"]:
            assert f"\n  {setting['name']} " in page or f"\n  {setting['name']}\n" in page
            assert f"example: {setting['example']}\n" in page
            assert setting["limits"].split(",")[0] in " ".join(page.split())
        assert "`" not in page


def test_a_page_has_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    page = said(capsys, "topk")
    assert "topk ratio=0.05" in page
    assert "encode with feedback" in page
    assert "0.4055" not in page
    assert "0.405" in page
    assert "arXiv 1809.07599" in " ".join(page.split())


def test_a_label_names_its_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "topk ratio=0.5") == said(capsys, "topk")


def test_common_settings_have_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = said(capsys, "common")
    assert "warmup_steps" in page
    assert "reset_every" in page


def test_json_is_the_same_for_programs(content: Methods, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(said(capsys, "--json")) == content
    assert json.loads(said(capsys, "topk", "--json"))["name"] == "topk"


def test_an_unknown_name_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["topkk"])
    assert ending.value.code == 2
    assert "did you mean 'topk'" in capsys.readouterr().err


def test_a_plugins_method_is_looked_up_in_the_registry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = cc.Description(**{**cc.describe("int8"), "name": "theirs", "module": "elsewhere"})
    monkeypatch.setattr("fsdp_lab.commands.methods.entry_points", lambda group: ["theirs"])
    monkeypatch.setattr("comm_compress.describe", lambda name: theirs)
    monkeypatch.setattr("fsdp_lab.commands.methods.bits_by_default", lambda description: 7.5)
    page = said(capsys, "theirs")
    assert page.startswith("theirs: ")
    assert "7.5 an element" in page
