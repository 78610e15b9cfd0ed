"""The figure of several settings shows each arm's change against the baseline of its own setting."""

from __future__ import annotations

import math

import pytest

from analysis.figures import by_setting
from analysis.figures.drawing import fonts
from analysis.figures.drawing.style import Style
from analysis.rows.comparing.comparisons import Comparison, comparisons
from analysis.rows.comparing.groups import several
from tests.analysis.planted_rows import SEEDS, arm, died

STYLE = Style("print", "double")
WORSE = {100: 0.01, 400: 0.03}


def settings(far: float = 0.03) -> list[Comparison]:
    rows = [*arm("none"), *arm("int8", WORSE[100]), *arm("int4", 0.0)]
    rows += [*arm("none", 1.0, max_steps=400), *arm("int8", 1.0 + far, max_steps=400)]
    (group,) = several(comparisons(rows))
    return group


def test_a_change_is_against_the_baseline_of_the_same_setting() -> None:
    found = {(point.setting, point.arm): point for point in by_setting.points(settings())}
    assert found["as most", "int8 + int8"].change == pytest.approx(100 * math.expm1(WORSE[100]))
    assert found["max_steps 400", "int8 + int8"].change == pytest.approx(100 * math.expm1(WORSE[400]))
    assert {arm for _, arm in found} == {"int8 + int8"}, "int4 was run in one setting"


def test_every_mark_is_in_its_setting_and_an_interval_around_it() -> None:
    axes = by_setting.draw(by_setting.points(settings()), STYLE).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["as most", "max_steps 400"]
    marks = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
    assert [round(line.get_ydata()[0]) for line in marks] == [0, 1]
    assert [line.get_xdata()[0] for line in marks] == pytest.approx([100 * math.expm1(x) for x in WORSE.values()])
    assert sum(line.get_gid() == "interval" for line in axes.lines) == 2


def test_large_changes_are_on_a_logarithmic_scale_and_lost_runs_at_the_edge() -> None:
    assert by_setting.draw(by_setting.points(settings(1.5)), STYLE).axes[0].get_xscale() == "symlog"
    rows = [row for c in settings() for row in c.rows if (row["compress_method"], row["steps"]) != ("int8", 400)]
    rows = [row for row in rows if row["config"]["max_steps"] == 100 or row["compress_method"] == "none"]
    rows += [died("int8", seed, max_steps=400) for seed in SEEDS]
    (group,) = several(comparisons(rows))
    points = by_setting.points(group)
    assert [math.isinf(point.change) for point in points] == [False, True]
    assert any(text.get_text() == "diverged or missing" for text in by_setting.draw(points, STYLE).axes[0].texts)


def test_nothing_shared_is_said() -> None:
    with pytest.raises(ValueError, match="two settings"):
        by_setting.points(comparisons([*arm("none"), *arm("int8")]))


@pytest.mark.filterwarnings("ignore:Glyph")
def test_labels_have_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "chinese", lambda: "DejaVu Sans")  # the words, not their look
    figure = by_setting.draw(by_setting.points(settings()), Style("slides", "single", "zh"))
    assert any("\u4e00" <= letter <= "\u9fff" for letter in figure.axes[0].get_xlabel())
