"""Figures as files: the same bytes every time, messages for what cannot be drawn, words in both languages."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import matplotlib
import pytest
from matplotlib import font_manager

from analysis.figures import system
from analysis.figures.drawing import catalogue as words, fonts
from analysis.figures.drawing.formats import FORMATS
from analysis.figures.drawing.style import Style, save

FIGURES = Path(system.__file__).parent


@pytest.fixture
def without_chinese_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    latin = [font for font in font_manager.fontManager.ttflist if font.name not in fonts.CJK_FONTS]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", latin)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("once", "again"):
        save(system.draw(Style(columns="single")), tmp_path / folder, "system")
    for extension in FORMATS:
        once, again = ((tmp_path / folder / f"system.{extension}").read_bytes() for folder in ("once", "again"))
        assert once == again
        assert b"CreationDate" not in once
        assert b"<dc:date>" not in once


def test_text_stays_text(tmp_path: Path) -> None:
    save(system.draw(Style()), tmp_path, "system", ["svg"])
    assert "reduce-scatter</text>" in (tmp_path / "system.svg").read_text()


def test_sizes_in_inches() -> None:
    assert [Style("print", columns).axes()[0].get_figwidth() for columns in ("single", "double")] == [3.3, 7.0]


@pytest.mark.parametrize("medium", ["print", "slides"])
@pytest.mark.parametrize("columns", ["single", "double"])
def test_the_diagrams_words_stay_in_their_boxes_and_apart(medium: str, columns: str) -> None:
    figure = system.draw(Style(medium, columns))  # type: ignore[arg-type]
    figure.draw_without_rendering()
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    boxes = [text.get_window_extent() for text in texts]
    for i, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0, texts[i].get_text()
        assert box.x1 <= figure.bbox.x1, texts[i].get_text()
        covered = [texts[j].get_text() for j, other in enumerate(boxes[:i]) if box.overlaps(other)]
        assert not covered, (texts[i].get_text(), covered)


def test_the_style_leaves_matplotlib_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    with Style("slides"):
        assert matplotlib.rcParams["font.size"] == 15.0
    assert dict(matplotlib.rcParams) == before


def test_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'gif', wants svg, pdf, png"):
        save(system.draw(Style()), tmp_path, "system", ["gif"])


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write figures to .*file"):
        save(system.draw(Style()), tmp_path / "file", "system", ["svg"])


@pytest.mark.usefixtures("without_chinese_fonts")
def test_without_a_chinese_font_the_message_says_how_to_get_one() -> None:
    with pytest.raises(ValueError, match=r"apt install fonts-noto-cjk .* --language en"):
        system.draw(Style(language="zh"))


def test_a_chinese_font_that_the_machine_has_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = font_manager.FontEntry(name="WenQuanYi Zen Hei")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [entry])
    assert fonts.chinese() == "WenQuanYi Zen Hei"
    assert Style(language="zh").parameters()["font.family"] == ["DejaVu Sans", "WenQuanYi Zen Hei"]


def said() -> set[str]:
    """Texts given to ``say`` as constants in the figures' files."""
    found: set[str] = set()
    for path in FIGURES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "say" and node.args:
                found |= {
                    v.value for v in ast.walk(node.args[0]) if isinstance(v, ast.Constant) and isinstance(v.value, str)
                }
    return found


def test_every_label_has_its_chinese() -> None:
    assert len(said()) > 10
    assert said() <= words.CHINESE.keys()


def test_a_label_keeps_its_gaps_in_chinese() -> None:
    for english, chinese in words.CHINESE.items():
        gaps = [{name for _, name, _, _ in string.Formatter().parse(text) if name} for text in (english, chinese)]
        assert gaps[0] == gaps[1], english


def test_labels_are_filled_in() -> None:
    assert words.say("{points} points", "en", points=3) == "3 points"
    assert words.say("moving mean of {points} points", "zh", points=3) == "3 点滑动平均"
    with pytest.raises(KeyError):
        words.say("a label that nobody wrote", "zh")
