"""What changes with the number of ranks: tokens/s, the share of communication, validation PPL, and how far that is from
the baseline's at as many ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from analysis.figures.comm_share import percent
from analysis.figures.drawing import bars
from analysis.figures.drawing.data import Datum, arms, of_summary, strengths
from analysis.figures.drawing.palette import look
from analysis.figures.drawing.style import GREY, Style
from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.rows.comparing.groups import is_virtual, labels
from analysis.statistics.intervals import Paired, Summary, paired, summary
from analysis.statistics.measures import Measure, column, over_seeds

SPEED, SHARE, PPL = "tokens/s", "communication, % of the step", "validation PPL"
CHANGE = "change of validation PPL, %"
_LINEAR = 2.0  # percent: the scale of changes is logarithmic beyond
_TICKS = (0, 2, 10, 100, 1000, 10_000)  # percent, both signs: where the scale of changes is logarithmic
_TOP = 0.95  # where lost runs are, of the panel's height
_APART = 0.12  # of a place: between the first arm and the last, so that intervals do not cover each other
VIRTUAL = " (virtual ranks)"  # ends the quantity of a point whose ranks were
TIMES: dict[str, Measure] = {SPEED: column("tokens_per_s"), SHARE: percent}


def data(group: Sequence[Comparison]) -> list[Datum]:
    """The numbers of arms that several comparisons of the group have; ``x`` is the number of ranks.

    A failed run makes the PPL infinite. ValueError when no arm has two world sizes."""
    numbers = [
        one
        for name in labels(group)
        for comparison in group
        for runs in comparison.by_label.get(name, [])
        for one in _points(runs, comparison)
    ]
    if not numbers:
        raise ValueError("no arm was run at two world sizes or more")
    return numbers


def _points(runs: ArmRuns, comparison: Comparison) -> list[Datum]:
    virtual, world = is_virtual(comparison), comparison.setting.world_size
    measured: dict[str, Summary | None] = {name: over_seeds(runs, of) for name, of in TIMES.items() if not virtual}
    measured[PPL] = summary([math.inf]) if runs.failures else over_seeds(runs, column("val_ppl"))
    if comparison.baseline is not None:
        measured[CHANGE] = _percent(paired(runs, comparison.baseline))
    kind = VIRTUAL if virtual else ""
    return [of_summary(runs, name + kind, at, x=world) for name, at in measured.items() if at is not None]


def _percent(change: Paired) -> Summary | None:
    """The change against the baseline in %. None without a pair; infinite when a run was lost."""
    if change.mean is None:
        return None
    mean, low, high = (None if x is None else 100 * x for x in (change.mean, change.low, change.high))
    return Summary(change.n, mean or 0.0, None, low, high)


def draw(numbers: Sequence[Datum], style: Style, foot: str = "") -> Figure:
    """The figure: a panel for each measure, a line for each arm.

    Virtual ranks, which have no times, are hollow. Diverged runs are at the upper edge."""
    panels = [name for name in (SPEED, SHARE, PPL, CHANGE) if _of(numbers, name)]
    names = list(arms(numbers))
    columns = 1 if style.columns == "single" else 2
    rows = math.ceil(len(panels) / columns)
    with style:
        figure, made = style.axes(rows, columns, height=rows * (0.62 if columns == 1 else 0.33), squeeze=False)
        for axes in list(made.flat)[len(panels) :]:
            axes.set_visible(False)
        for axes, name in zip(made.flat, panels, strict=False):
            for place, arm in enumerate(names):
                points = [one for one in _of(numbers, name) if one.arm == arm]
                _line(axes, style, points, strengths(numbers)[arm], 1 + _APART * ((place + 0.5) / len(names) - 0.5))
            lost = {one.x or 1 for one in _of(numbers, name) if math.isinf(one.value)}
            for world in lost:
                at = (world, _TOP)
                moved = {"xytext": (0, -0.7 * style.font), "textcoords": "offset points", "ha": "center", "va": "top"}
                text = {"color": GREY, "fontsize": style.small}
                axes.annotate(style.say("diverged"), at, xycoords=axes.get_xaxis_transform(), **moved, **text)
            _scales(axes, name, numbers)
            if lost:
                _make_room_above(axes)
            axes.set_xlabel(style.say("world size"))
            axes.set_title(style.say(name))
        _legend(figure, made.flat[0], style, numbers)
        style.foot(figure, foot)
    return figure


def _scales(axes: Axes, name: str, numbers: Sequence[Datum]) -> None:
    worlds = sorted({one.x for one in _of(numbers, name) if one.x is not None})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(worlds))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:.0f}")
    if name in (SPEED, SHARE):
        axes.set_ylim(0, 1.06 * axes.get_ylim()[1])  # from 0, so that a line half as high is half as fast
    if name == PPL:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)) if _spread(axes) > 2 else MaxNLocator(5))
        axes.yaxis.set_minor_locator(NullLocator())
    seen = [abs(one.value) for one in _of(numbers, name) if math.isfinite(one.value)]
    if name == CHANGE and max(seen, default=0.0) > 5 * _LINEAR:
        axes.set_yscale("symlog", linthresh=_LINEAR)
        axes.autoscale_view(scalex=False)  # margins in this scale, not in the one before
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(FixedLocator([sign * t for sign in (-1, 1) for t in _TICKS]))
    axes.yaxis.set_major_formatter("{x:,.0f}" if name in (SPEED, PPL) else "{x:,.4g}")
    if name == CHANGE:
        axes.yaxis.set_major_formatter(lambda change, _: f"{change:+,.4g}" if change else "0")


def _spread(axes: Axes) -> float:
    low, high = axes.get_ylim()
    return high / low


def _make_room_above(axes: Axes) -> None:
    """Make room for lost runs: a fifth of what the others take, on the axis's own scale."""
    scale = axes.yaxis.get_transform()
    low, high = scale.transform(axes.get_ylim())
    axes.set_ylim(top=float(scale.inverted().transform(high + 0.2 * (high - low))))


def _of(numbers: Sequence[Datum], name: str) -> list[Datum]:
    return [one for one in numbers if one.quantity.removesuffix(VIRTUAL) == name]


def _line(axes: Axes, style: Style, points: Sequence[Datum], strength: int, aside: float) -> None:
    """Draw one arm's line; ``aside`` is a factor of its horizontal places, so that lines do not cover each other."""
    finite = [(aside * (one.x or 1), one.value) for one in points if math.isfinite(one.value)]
    if finite:
        axes.plot(*zip(*finite, strict=True), **style.line(points[0].family, strength))
    for one in points:
        drawn = _marker(style, one.family, one.quantity.endswith(VIRTUAL))
        world = aside * (one.x or 1)
        if math.isinf(one.value):
            axes.plot(world, _TOP, transform=axes.get_xaxis_transform(), **drawn)
        else:
            spread = None if one.low is None or one.high is None else [[one.value - one.low], [one.high - one.value]]
            colour = look(one.family).colour
            axes.errorbar(world, one.value, yerr=spread, ecolor=colour, elinewidth=style.stroke / 2, **drawn)


def _legend(figure: Figure, axes: Axes, style: Style, numbers: Sequence[Datum]) -> None:
    for arm, family in arms(numbers).items():
        axes.plot([], [], **_marker(style, family, False) | style.line(family, strengths(numbers)[arm]), label=arm)
    if any(one.quantity.endswith(VIRTUAL) for one in numbers):
        axes.plot([], [], **_marker(style, "none", True), ls="none", label=style.say("virtual ranks"))
    bars.legend(figure, axes, style)


def _marker(style: Style, family: str, hollow: bool) -> dict[str, Any]:
    drawn = {name: value for name, value in style.points(family, 0.9).items() if name != "ls"}
    return drawn | ({"mfc": "white", "mec": look(family).colour, "mew": style.stroke * 0.7} if hollow else {})
