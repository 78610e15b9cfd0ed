"""Quality against compression: what each way to communicate costs in perplexity, and what it saves.

    y  change of perplexity against the baseline, percent, seed by seed; bars are 95 % intervals of its mean
    x  uncompressed bytes over those sent: all traffic, gradients alone, or parameters alone; or bits, falling

The stepped line is the Pareto front of the means: no other arm has both a higher ratio and a lower perplexity. Thin
lines join one method's strengths, of which one bears the method's name. The shaded field is the user's bar. An arm of
which a run failed, diverged or is missing stands in the band at the top, with how many of how many.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures.drawing.labels import Named, Place, panels, pieces, place
from analysis.figures.drawing.palette import look
from analysis.figures.drawing.style import GREY, Style
from analysis.statistics.answers import MARGIN, RATIO
from analysis.statistics.pareto import Axis, Point, front

_LINEAR = 2.0  # percent: the scale is linear up to it on both sides, logarithmic beyond
_TICKS = (0.0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
_LOWEST, _HIGHEST = (
    5,
    5,
)  # how far an interval may stretch the scale, times its mean (or 1 and 2 %): few pairs know little
_X: dict[Axis, str] = {
    "all": "compression of all traffic (against {dtype})",
    "gradients": "compression of gradients (against {dtype})",
    "parameters": "compression of parameters (against {dtype})",
    "bits": "bits a parameter and step",
}
BAND = "#F1F1F1"
FIELD = "#DCEFE6"


def draw(
    points: Sequence[Point], style: Style, *, traffic: Axis = "all", against: str = "fp32", foot: str = ""
) -> Figure:
    """The figure. Every point is in it: named beside its mark, or by a number that the list below explains."""
    with style:
        numbered: list[str] = []
        while True:  # every round moves names that found no room to the list, for which it makes the figure higher
            figure, without_room = _draw(points, numbered, style, traffic, against, foot)
            fresh = [label for label in without_room if label not in numbered]
            if not fresh:
                return figure
            numbered += fresh


def _draw(
    points: Sequence[Point], numbered: Sequence[str], style: Style, traffic: Axis, against: str, foot: str
) -> tuple[Figure, list[str]]:
    """Draw with ``numbered`` labels in the list. Returns the labels for whose names there was no room."""
    placed = _ordered([p for p in points if p.ratio is not None])
    numbers = {label: str(i) for i, label in enumerate(numbered, start=1)}
    farthest = _farthest(placed, traffic)
    notes = _notes(points, placed, style, foot)
    figure, axes = _plot_and_list(placed, numbers, style, farthest, style.foot_height(notes))
    band, edge = _scales(axes, style, placed, farthest, traffic)
    if traffic != "bits":  # which say nothing of what a ratio is against
        _bar(axes, style)
    best = front(placed)
    corners = [(min(p.ratio or 0, farthest), 100 * p.change) for p in best]
    axes.plot(
        *zip(*corners, strict=True), drawstyle="steps-pre", color=GREY, lw=0.8 * style.stroke, zorder=1.5, gid="front"
    )
    slanting: list[tuple[Place, Place]] = []
    for some in _strengths(placed):
        at = [_place(point, farthest, edge) for point in some]
        slanting += pieces(axes, at)
        axes.plot(
            *zip(*at, strict=True), color=look(some[0].family).colour, lw=0.5 * style.stroke, alpha=0.6, gid="series"
        )
    lines = [_mark(axes, style, point, size, _place(point, farthest, edge)) for point, size in _sized(placed)]
    lines += slanting
    lines += [((x0, y), (x1, y)) for (x0, _), (x1, y) in itertools.pairwise(corners)]
    lines += [((x, y0), (x, y1)) for (x, y0), (_, y1) in itertools.pairwise(corners)]
    left, right = axes.get_xlim()
    lines += [((left, level), (right, level)) for level in (0.0, band)]
    axes.set_xlabel(style.say(_X[traffic], dtype=against))
    axes.set_ylabel(style.say("change of validation PPL, %"))
    floor, roof = axes.get_ylim()
    is_cut = any(100 * (p.low or 0) < floor or (100 * (p.high or 0) > roof and math.isfinite(p.change)) for p in placed)
    cut = style.say("a bar that reaches the edge goes on beyond it") if is_cut else ""
    style.foot(figure, "\n".join(filter(None, [cut, notes])))
    placed = sorted(placed, key=lambda p: (not p.is_baseline, p.label not in numbers))
    named = [
        Named(*_place(p, farthest, edge), numbers.get(p.label, _name(p, farthest, p.short)), look(p.family).colour)
        for p in placed
    ]
    marks = [(point.x, point.y) for point in named]
    without_room = place(axes, style, named, marks, lines, always=set(numbers.values()), apart=band)
    labels = dict(zip(named, (p.label for p in placed), strict=True))
    return figure, [labels[point] for point in without_room]


def _notes(points: Sequence[Point], placed: Sequence[Point], style: Style, foot: str) -> str:
    """What is written below everything, ``foot`` last."""
    unplaced = [f"{p.label} ({p.lost}/{p.pairs})" for p in points if p.ratio is None]
    is_hollow = any(p.verdict == "undecided" and not p.is_baseline for p in placed)
    notes = [style.say("hollow: not decided at {bar:g} %", bar=100 * MARGIN)] if is_hollow else []
    notes += [style.say("failed before any byte was counted: {arms}", arms=", ".join(unplaced))] if unplaced else []
    return "\n".join([*notes, foot] if foot else notes)


def _plot_and_list(
    placed: Sequence[Point], numbers: dict[str, str], style: Style, farthest: float, foot_high: float
) -> tuple[Figure, Axes]:
    """A plot and, below it, the number, mark and name of every point that had no room for its name."""
    narrow = style.columns == "single"
    high = style.width * (0.95 if narrow else 0.55)
    by_label = {point.label: (point, size) for point, size in _sized(placed)}
    handles = []
    for label, number in numbers.items():
        point, size = by_label[label]
        handles.append(Line2D([], [], **_look(style, point, size) | {"label": f"{number}  {_name(point, farthest)}"}))
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    room = (0.53 * longest + 4) * style.small / 72  # inches: a letter's mean width, mark and gap
    return panels(style, 1, 1, high, handles, max(int(style.width / room), 1), foot_high)


def _scales(axes: Axes, style: Style, placed: Sequence[Point], farthest: float, traffic: Axis) -> tuple[float, float]:
    """Set limits and ticks; return the percentages above which, and at which, diverged arms are drawn."""
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=_LINEAR, linscale=1.2)
    ratios = [p.ratio for p in placed if p.ratio is not None]
    changes = [100 * p.change for p in placed if math.isfinite(p.change)]
    highs = [min(100 * p.high, _HIGHEST * max(100 * p.change, 2)) for p in placed if p.high is not None]
    lows = [max(100 * p.low, _LOWEST * min(100 * p.change, -1)) for p in placed if p.low is not None]
    to_scale, back = axes.yaxis.get_transform(), axes.yaxis.get_transform().inverted()
    bottom, top = (float(v) for v in to_scale.transform([min([*changes, *lows, -1.0]), max([*changes, *highs, 2.0])]))
    span = top - bottom
    diverged = any(math.isinf(p.change) for p in placed)
    limits = back.transform([bottom - 0.06 * span, top + 0.06 * span, top + 0.13 * span, top + 0.20 * span])
    floor, ceiling, edge, roof = (float(v) for v in limits)
    axes.set_ylim(floor, roof if diverged else ceiling)
    axes.set_xlim(0.72 * min(ratios), 1.9 * farthest)
    highest = float(back.transform([top + 0.02 * span])[0]) if diverged else ceiling  # room for the band's own name
    ticks = [t for t in (*(-t for t in _TICKS[:0:-1]), *_TICKS) if floor <= t <= highest]
    if style.columns == "single" or ceiling > 200:
        ticks = [t for t in ticks if abs(t) in (0, 1, 2) or (abs(t) >= 10 and math.log10(abs(t)).is_integer())]
    names = [f"{t:+,g}" if t else "0" for t in ticks]
    axes.set_yticks(
        [*ticks, *([edge] if diverged else [])], [*names, *([style.say("diverged\nor missing")] if diverged else [])]
    )
    axes.set_yticks([], minor=True)
    _compression(axes, is_bits=traffic == "bits")
    axes.axhline(0, color="black", lw=0.5 * style.stroke, zorder=1)
    if diverged:
        axes.axhspan(ceiling, roof, color=BAND, lw=0, zorder=2.2)  # over the grid's line through it
    return ceiling, edge


def _compression(axes: Axes, is_bits: bool) -> None:
    """Set the ticks of ratios, or of the bits that they are 1 over."""
    left, right = axes.get_xlim()
    powers = [2.0**e for e in range(-10, 11)] if right / left < 2000 else [10.0**e for e in range(-12, 12)]
    shown = [power for power in powers if left <= power <= right]
    axes.set_xticks(shown, [f"{1 / power:.3g}" if is_bits else f"{power:,.10g}x" for power in shown])
    axes.set_xticks([], minor=True)


def _bar(axes: Axes, style: Style) -> None:
    """Draw the field of the bar (`statistics.answers`): enough compression for little enough loss."""
    low, right = axes.get_ylim()[0], axes.get_xlim()[1]
    axes.fill_between([RATIO, right], [low, low], [100 * MARGIN] * 2, color=FIELD, lw=0, zorder=0.6)
    axes.annotate(
        style.say("{ratio:g}x or more, {change:g} % worse at most", ratio=RATIO, change=100 * MARGIN),
        (1, 0),
        (-3, 3),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=style.small,
        color="#2E7D5B",
        zorder=4.5,  # over an interval that ends there
        bbox={"facecolor": FIELD, "linewidth": 0, "pad": 0.6},
    )


def _mark(axes: Axes, style: Style, point: Point, size: float, at: Place) -> tuple[Place, Place]:
    """Draw mark and interval; return the interval's ends, or twice the mark's place."""
    x, y = at
    axes.plot([x], [y], **_look(style, point, size))
    if point.low is None or point.high is None or math.isinf(point.change):
        return (x, y), (x, y)
    low, high = 100 * point.low, 100 * point.high
    axes.plot(
        [x, x], [low, high], color=look(point.family).colour, lw=0.6 * style.stroke, zorder=4, alpha=0.6, gid="interval"
    )
    return (x, low), (x, high)


def _look(style: Style, point: Point, size: float) -> dict[str, Any]:
    seen = style.points(point.family, size, zorder=5, label="_" + point.label)
    if point.verdict == "undecided" and not point.is_baseline:
        seen |= {"mfc": "white", "mec": seen["color"], "mew": 0.8 * style.stroke}
    return seen


def _place(point: Point, farthest: float, edge: float) -> Place:
    """Where the point is drawn, in data coordinates."""
    return min(point.ratio or 0, farthest), edge if math.isinf(point.change) else 100 * point.change


def _strengths(placed: Sequence[Point]) -> list[list[Point]]:
    """The points of each method with several strengths, by rising ratio; diverged ones have no place on a line."""
    by_method: dict[str, list[Point]] = {}
    for point in sorted(placed, key=lambda p: p.ratio or 0):
        if point.strength_of is not None and math.isfinite(point.change):
            by_method.setdefault(point.strength_of, []).append(point)
    return [some for some in by_method.values() if len(some) > 1]


def _name(point: Point, farthest: float, short: str | None = None) -> str:
    """The point's name, with its ratio where the plot does not reach as far, and how many of its runs were lost, if
    any."""
    text = short or point.label
    text = text if (point.ratio or 0) <= farthest else f"{text} ({point.ratio:,.0f}x)"
    return f"{text} ({point.lost}/{point.pairs})" if point.lost else text


def _farthest(placed: Sequence[Point], traffic: Axis) -> float:
    """The ratio at which the plot ends: one arm that sends next to nothing must not squeeze all others. Bits end at the
    fewest, as local steps send next to nothing, too."""
    largest = sorted(point.ratio or 0 for point in placed)[::-1]
    if traffic == "bits":
        return largest[0]
    return 3 * largest[1] if len(largest) > 2 and largest[0] > 30 * largest[1] else largest[0]


def _ordered(placed: Sequence[Point]) -> list[Point]:
    """The points in the order in which their names are placed: the front's first, then those near it."""
    best = {p.label for p in front(placed)}
    return sorted(placed, key=lambda p: (not p.is_baseline, p.label not in best, p.change, -(p.ratio or 0)))


def _sized(placed: Sequence[Point]) -> list[tuple[Point, float]]:
    """Each point with the size of its mark: in a family the weakest compression has the largest."""
    sized = []
    for point in placed:
        family = sorted(p.ratio or 0 for p in placed if p.family == point.family)
        sized.append((point, 1.2 - 0.4 * family.index(point.ratio or 0) / max(len(family) - 1, 1)))
    return sized
