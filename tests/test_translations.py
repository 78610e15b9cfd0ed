"""Translated pages say what they translate. That some lag is printed and fails nothing; the script says why."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from scripts import translations

ENGLISH = "# Title\n"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A project with one page, and a current translation of it."""
    (tmp_path / "docs/zh").mkdir(parents=True)
    (tmp_path / "docs/page.md").write_text(ENGLISH)
    digest = translations.digest(tmp_path / "docs/page.md")
    (tmp_path / "docs/zh/page.md").write_text(f"<!-- translates: docs/page.md sha256:{digest} -->\n\n# 标题\n")
    return tmp_path


def test_every_translated_page_names_a_page_that_is_there() -> None:
    behind = [
        str(page.relative_to(translations.ROOT)) for page in translations.translations() if translations.lags(page)
    ]
    if behind:
        warnings.warn(f"translations that lag behind: {', '.join(behind)}", stacklevel=1)


def test_a_changed_page_makes_its_translation_lag_until_it_is_stamped(pages: Path) -> None:
    (page,) = translations.translations(pages)
    assert not translations.lags(page, pages)
    (pages / "docs/page.md").write_text("# Another title\n")
    assert translations.lags(page, pages)
    translations.stamp(page, pages)
    assert not translations.lags(page, pages)
    assert page.read_text().endswith("# 标题\n")


def test_a_missing_page_and_a_malformed_marker_are_said(pages: Path) -> None:
    (page,) = translations.translations(pages)
    (pages / "docs/page.md").unlink()
    with pytest.raises(ValueError, match=r"docs/page\.md, which is not there"):
        translations.lags(page, pages)
    page.write_text("# 标题\n")
    with pytest.raises(ValueError, match="the first line must be"):
        translations.lags(page, pages)
