"""An arm's cost in several settings: does what was found in one hold in the others?

    y  the settings, each by what it has that most others have not
    x  change of validation PPL against the baseline of the same setting, with its 95 % interval

Arms of which a run failed, diverged or is missing stand at the right edge.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from analysis.figures.drawing.palette import look
from analysis.figures.drawing.style import GREY, Style
from analysis.figures.pareto import BAND
from analysis.rows.comparing.comparisons import Comparison
from analysis.rows.comparing.groups import labels
from analysis.rows.comparing.told_apart import told_apart
from analysis.statistics.answers import MARGIN
from analysis.statistics.intervals import paired

CHANGE = "change of validation PPL, %"
_LINEAR = 2.0  # percent: the scale is logarithmic beyond, where a change is larger than five times as much
_TICKS = (0, 1, 2, 10, 100, 1000, 10_000)
_NAMES = 0.34  # of the figure's width, for the settings' names
_ROOM = 0.7  # of a setting's height, for the marks of its arms
_EDGE = 0.985  # where lost runs are, of the figure's width
_FILLINGS = ("full", "none", "left", "top", "right", "bottom")


@dataclass(frozen=True)
class Point:
    """An arm's change in one setting, in percent; infinite where a run was lost. ``place``: the setting's, from 0."""

    arm: str
    family: str
    setting: str
    place: int
    change: float
    low: float | None
    high: float | None
    pairs: int


def points(group: Sequence[Comparison]) -> list[Point]:
    """The changes of arms that several comparisons have, setting by setting.

    ValueError when no arm beside the baseline was run in two settings."""
    shared = set(labels(group))
    found = []
    for place, (comparison, name) in enumerate(zip(group, told_apart([c.setting for c in group]), strict=True)):
        for runs in comparison.rivals:
            if comparison.baseline is None or runs.arm.label not in shared:
                continue
            change = paired(runs, comparison.baseline)
            if change.mean is not None:
                low, high = (None if end is None else 100 * end for end in (change.low, change.high))
                at = (runs.arm.label, runs.arm.family, name, place)
                found.append(Point(*at, 100 * change.mean, low, high, change.n))
    if not found:
        raise ValueError("no arm was run in two settings or more")
    return found


def draw(points: Sequence[Point], style: Style, foot: str = "") -> Figure:
    """The figure: a band for each setting, and in it a mark and an interval for each arm."""
    letters = int(_NAMES * style.width * 72 / (0.57 * style.small))
    settings = {point.place: textwrap.wrap(point.setting, letters) for point in points}
    arms = {point.arm: _look(style, point, points) for point in points}
    lines = len(settings) * max(0.6 + 0.5 * len(arms), *(0.4 + len(name) for name in settings.values()))
    inches = (lines + len(arms) / 2 + 5) * 1.4 * style.small / 72
    lost = style.say("diverged\nor missing").replace("\n", " ")
    with style:
        figure, axes = style.axes(height=inches / style.width)
        axes.axvspan(-100 * MARGIN, 100 * MARGIN, color=BAND, zorder=0, lw=0)
        axes.axvline(0, color=GREY, lw=0.5 * style.stroke, ls="--", zorder=1)
        for point in points:
            aside = _ROOM * ((list(arms).index(point.arm) + 0.5) / len(arms) - 0.5)
            height = list(settings).index(point.place) + aside
            if math.isinf(point.change):
                axes.plot(_EDGE, height, transform=axes.get_yaxis_transform(), **arms[point.arm])
                beside = {"ha": "right", "va": "center", "color": GREY, "fontsize": style.small}
                axes.text(_EDGE - 0.02, height, lost, transform=axes.get_yaxis_transform(), **beside)
                continue
            axes.plot(point.change, height, **arms[point.arm])
            if point.low is not None and point.high is not None:
                colour = look(point.family).colour
                axes.plot([point.low, point.high], [height] * 2, color=colour, lw=0.6 * style.stroke, gid="interval")
        _scale(axes, points)
        axes.set_yticks(range(len(settings)), ["\n".join(name) for name in settings.values()])
        axes.set_ylim(len(settings) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(style.say(CHANGE))
        handles = [Line2D([], [], **{**drawn, "label": arm}) for arm, drawn in arms.items()]
        figure.legend(handles=handles, loc="outside upper left", ncols=1 if style.columns == "single" else 2)
        style.foot(figure, foot)
    return figure


def _scale(axes: Axes, points: Sequence[Point]) -> None:
    ends = [end for p in points for end in (p.change, p.low, p.high) if end is not None and math.isfinite(end)]
    if max(map(abs, ends), default=0.0) > 5 * _LINEAR:
        axes.set_xscale("symlog", linthresh=_LINEAR)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(FixedLocator(sorted({sign * tick for sign in (-1, 1) for tick in _TICKS})))
    axes.xaxis.set_major_formatter(lambda change, _: f"{change:+,.4g}" if change else "0")


def _look(style: Style, point: Point, points: Sequence[Point]) -> dict[str, Any]:
    """An arm's mark: its family's, and in another filling where several arms are of one family."""
    alike = list(dict.fromkeys(one.arm for one in points if one.family == point.family))
    filling = _FILLINGS[alike.index(point.arm) % len(_FILLINGS)]
    return style.points(point.family, zorder=4) | {"fillstyle": filling, "markerfacecoloralt": "white"}
