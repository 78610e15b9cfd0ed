"""docs/reference says what the registry, the settings and the schema say today."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_lab.commands.reference import reference_pages
from fsdp_lab.commands.reference.methods_file import read
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.settings.config import TrainConfig


@pytest.mark.parametrize("name", reference_pages.pages())
def test_a_page_is_what_would_be_written_now(name: str) -> None:
    advice = "make it anew: python -m fsdp_lab.commands.reference.reference_pages"
    assert (reference_pages.FOLDER / name).read_text() == reference_pages.pages()[name], advice


def test_every_setting_has_a_line() -> None:
    settings = reference_pages.pages()["settings.md"]
    for config in (TrainConfig, EagleConfig):
        assert [name for name in config.specs() if f"| `{name}`" not in settings] == []
    methods = reference_pages.pages()["methods.md"]
    for method in read()["methods"]:
        section = methods.partition(f"\n## {method['name']}\n")[2].partition("\n## ")[0]
        assert [s["name"] for s in method["settings"] if f"| `{s['name']}`" not in section] == []


def test_a_page_that_lags_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference_pages, "FOLDER", tmp_path / "reference")
    assert reference_pages.main(["--check"]) == 1
    assert "docs/reference/methods.md is out of date" in capsys.readouterr().err
    assert reference_pages.main([]) == 0
    assert reference_pages.main(["--check"]) == 0
