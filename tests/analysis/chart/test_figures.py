"""Thirty arms on one figure: every arm can be found, and no text covers another one."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from analysis.chart import figures
from analysis.chart.places import Chart, chart
from analysis.figures.drawing.style import Columns, Style
from analysis.predict.calibration import Calibration
from analysis.predict.predictor import CALIBRATION
from analysis.rows.reading import Row
from analysis.statistics import tuning
from tests.analysis.chart.planted import Arms, row

LOST = "zero_one_adam signsgd"
OPTIMIZERS = {"demo": "dct", "onebit_adam": "signsgd", "zero_one_adam": "signsgd", "ef21_muon": "topk ratio=0.1"}


def arms() -> Arms:
    """As many as the recipe has, as near to each other: a third of them within 1 % of the baseline."""
    settings: list[tuple[dict[str, Any], str]] = [({}, "all_gather"), ({"dp_replicas": 2}, "all_reduce")]
    for gradients, parameters in itertools.product(("bf16", "int8", "int4", "topk", "ecsq"), ("bf16", "int8", "delta")):
        settings.append(({"comm_compress": gradients, "param_compress": parameters}, "all_gather"))
    for name, method in OPTIMIZERS.items():
        settings.append(({"optimizer": name, "optimizer_compress": method, "dp_replicas": 2}, "optimizer"))
    for every, outer, method in itertools.product((10, 30), ("local_sgd", "diloco"), ("none", "topk ratio=0.02")):
        local = {"outer": outer, "outer_every": every, "outer_compress": method, "dp_replicas": 2}
        settings.append((local, "outer"))
    settings.append(({"optimizer": "muon"}, "optimizer"))
    found: dict[str, Any] = {"none": (0.0, {"all_gather": 128.0}, {})}
    for number, (said, operation) in enumerate(settings[1:], start=1):
        bits = 128 * 0.75**number
        found[f"arm {number}"] = (0.002 * number if number < 12 else 0.005 * number - 0.04, {operation: bits}, said)
    return found


@functools.cache
def crowd() -> Chart:
    known = arms()
    rows = [row(arm, seed, arms=known) for seed in (1, 2, 3) for arm in known]
    died = {"status": "diverged", "val_loss": None}
    lost = [one["config"].get("optimizer") == "zero_one_adam" and one["seed"] > 1 for one in rows]
    rows = [Row({**one, **died}) if is_lost else one for one, is_lost in zip(rows, lost, strict=True)]
    return chart(tuning.judged(rows, None), rows, Calibration.load(CALIBRATION), 0.01)


def drawn(figure: Figure) -> None:
    figure.draw_without_rendering()


def boxes(figure: Figure) -> dict[str, Bbox]:
    """Where the names beside marks stand, those of the list, the label of the axis, and the foot."""
    axes = figure.axes[0]
    texts = [text for text in axes.texts if text.get_text()]
    texts += [text for other in figure.axes if (known := other.get_legend()) for text in known.get_texts()]
    texts.append(axes.xaxis.label)
    found = {text.get_text(): text.get_window_extent() for text in texts}
    assert len(found) == len(texts)
    return found | {"foot": figure._supxlabel.get_window_extent()}  # type: ignore[attr-defined]


def overlaps(found: dict[str, Bbox]) -> list[tuple[str, str]]:
    pairs = itertools.combinations(found.items(), 2)
    return [(one, other) for (one, a), (other, b) in pairs if a.padded(-0.5).overlaps(b.padded(-0.5))]


@pytest.mark.parametrize("columns", ["single", "double"])
def test_every_arm_is_named_once_and_nothing_covers_a_name(columns: Columns) -> None:
    assert len(crowd().places) == 30
    figure = figures.quality(crowd(), Style(columns=columns), "fair: three seeds")
    drawn(figure)
    found = boxes(figure)
    assert overlaps(found) == []
    assert all(box.y0 >= -1 and box.y1 <= figure.bbox.y1 + 1 for box in found.values())
    said = [text.lstrip("0123456789 ").partition(" (")[0] for text in found]
    for place in crowd().places:
        assert said.count(place.answered.label) == 1, place.answered.label
    assert "none" in found, "the baseline's name stands beside its mark"
    assert figure.bbox.height / figure.bbox.width < (2.2 if columns == "single" else 0.9)


def test_a_name_in_the_band_of_lost_runs_is_of_an_arm_that_lost_some() -> None:
    for columns in ("single", "double"):
        figure = figures.quality(crowd(), Style(columns=columns))
        drawn(figure)
        axes = figure.axes[0]
        band = next(patch for patch in axes.patches if patch.get_window_extent().y1 >= axes.bbox.y1 - 1)
        inside = [
            text.get_text()
            for text in axes.texts
            if text.get_text() and text.get_window_extent().y1 > band.get_window_extent().y0 + 1
        ]
        assert len(inside) == 1
        assert LOST in inside[0] or inside[0].isdigit()


@pytest.mark.parametrize("columns", ["single", "double"])
def test_many_arms_that_never_get_there_are_named_at_the_foot(columns: Columns) -> None:
    figure = figures.times(crowd(), Style(columns=columns))
    drawn(figure)
    found = boxes(figure)
    assert overlaps(found) == []
    assert all(box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1 for box in found.values())
    foot = " ".join(figure._supxlabel.get_text().split())  # type: ignore[attr-defined]
    for place in crowd().places:
        assert (place.answered.label in found) == place.reaches
        assert (place.answered.label in foot.partition("never: ")[2].split("; ")) != place.reaches
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()][::3] == ["10 Gbit/s", "20 Mbit/s"]
