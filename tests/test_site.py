"""The site's hooks: links to the rows of the front page's figure lead to their report, and all others stay in order."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="needs the extra: pip install -e .[docs]")
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts import site_hooks

ROOT = Path(__file__).resolve().parents[1]
PAGE = "<!DOCTYPE html><title>report</title>"


@pytest.fixture(scope="module")
def config() -> MkDocsConfig:
    read = load_config(str(ROOT / "mkdocs.yml"))
    read.plugins._current_plugin = "hooks"  # a build sets it before it calls a hook
    return read


def _turned(config: MkDocsConfig, place: str, monkeypatch: pytest.MonkeyPatch, languages: tuple[str, ...]) -> str:
    """The Markdown of the page ``place`` on a site that has reports in ``languages``."""
    monkeypatch.setattr(site_hooks, "report", lambda language: PAGE if language in languages else None)
    names = ["README.md", "zh/README.md"]
    files = [File(name, str(ROOT / "docs"), config.site_dir, config.use_directory_urls) for name in names]
    found = site_hooks.on_files(Files(files), config).get_file_from_path(place)
    assert found is not None
    page = Page(None, found, config)
    page.read_source(config)
    assert page.markdown is not None
    every = Files([*files, *[File.generated(config, to, content=PAGE) for to in _places(languages)], found])
    return site_hooks.on_page_markdown(page.markdown, page, config, every)


def _places(languages: tuple[str, ...]) -> list[str]:
    return [site_hooks.REPORTS[language] for language in languages]


@pytest.mark.parametrize(("place", "to"), [("index.md", "results/index.html"), ("zh/README.md", "../results/zh/index")])
def test_the_front_pages_link_to_the_report(
    config: MkDocsConfig, place: str, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"]({to}" in _turned(config, place, monkeypatch, ("en", "zh"))


def test_without_a_chinese_font_the_link_becomes_its_text(
    config: MkDocsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = _turned(config, "zh/README.md", monkeypatch, ("en",))
    assert "图中的结果行" in text
    assert "results/zh" not in text
    assert "bar.jsonl" not in text


def test_the_rows_are_in_the_checkout() -> None:
    assert (ROOT / site_hooks.ROWS).is_file()
