"""docs/reference says what the registry, the settings and the schema say today, docs/zh/reference in Chinese."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from fsdp_lab.commands.reference import reference_pages
from fsdp_lab.commands.reference.languages import Language, chinese
from fsdp_lab.commands.reference.methods_file import read
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.settings.config import TrainConfig


@pytest.mark.parametrize("name", reference_pages.pages())
def test_a_page_is_what_would_be_written_now(name: str) -> None:
    advice = "make it anew: python -m fsdp_lab.commands.reference.reference_pages"
    assert (reference_pages.DOCS / name).read_text() == reference_pages.pages()[name], advice


def test_every_setting_has_a_line() -> None:
    settings = reference_pages.pages()["reference/settings.md"]
    for config in (TrainConfig, EagleConfig):
        assert [name for name in config.specs() if f"| `{name}`" not in settings] == []
    methods = reference_pages.pages()["reference/methods.md"]
    for method in read()["methods"]:
        section = methods.partition(f"\n## {method['name']}\n")[2].partition("\n## ")[0]
        assert [s["name"] for s in method["settings"] if f"| `{s['name']}`" not in section] == []


def test_a_page_that_lags_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference_pages, "DOCS", tmp_path)
    assert reference_pages.main(["--check"]) == 1
    assert "docs/reference/methods.md is out of date" in capsys.readouterr().err
    assert reference_pages.main([]) == 0
    assert reference_pages.main(["--check"]) == 0


def test_a_sentence_without_chinese_stays_english_and_makes_its_page_lag() -> None:
    sentence = "micro-batches per optimiser step"
    whole = chinese()
    assert whole.table is not None
    zh = Language({key: text for key, text in whole.table.items() if key != sentence})
    page = reference_pages.pages(zh)["zh/reference/settings.md"]
    assert sentence in zh.missing
    assert f"| {sentence} |" in page
    assert f"sha256:{64 * '0'}" in page, "no page has this digest, so the translation lags"


def test_a_whole_translation_is_stamped_with_its_english_page() -> None:
    zh = chinese()
    reference_pages.pages(zh)
    assert zh.table is not None
    made = reference_pages.pages(Language({**zh.table, **dict.fromkeys(zh.missing)}))
    for name in ("reference/methods.md", "reference/settings.md"):
        current = hashlib.sha256(made[name].encode()).hexdigest()
        assert made[f"zh/{name}"].startswith(f"<!-- translates: docs/{name} sha256:{current} -->\n")


def test_a_translation_keeps_code_and_numbers() -> None:
    zh = chinese()
    assert zh.table is not None
    for english, text in zh.table.items():
        for pattern in (r"`+[^`]+`+", r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", r"\{\w+\}"):
            lost = set(re.findall(pattern, english)) - set(re.findall(pattern, text or english))
            assert not lost, f"{english!r}: its translation lacks {lost}"


def test_a_sentence_in_two_sections_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chinese.json").write_text('{"a": {"on": "开"}, "b": {"on": "关"}}')
    with pytest.raises(ValueError, match="'on' stands in 'b' and before"):
        chinese(tmp_path / "chinese.json")
