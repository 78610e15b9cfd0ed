"""Acceptance length against bytes: what each way to communicate leaves of a draft's use, and what it sends.

    y  tau, tokens a pass of the target, mean over seeds
    x  bits a parameter and step, all traffic

The line is the baseline's mean. Bars are 95 % intervals of the difference to it, taken seed by seed: what a seed does
to all arms alike is not in them. Hollow: parameters are compressed, too. An arm of which a run failed or is missing
stands in the band at the bottom, with how many of how many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from analysis.figures.drawing.labels import Named, place
from analysis.figures.drawing.palette import look
from analysis.figures.drawing.style import GREY, Style
from analysis.figures.pareto import BAND
from analysis.rows.comparing.comparisons import Comparison
from analysis.statistics.acceptance import Line, is_lost, lines

TAU = "acceptance length, tokens a pass"
BITS = "bits a parameter and step"
_ROOM = 0.12  # of the values' range, left free above and below them


@dataclass(frozen=True)
class Point:
    """One arm in the figure.

    ``low`` to ``high`` is ``tau`` with the interval of its difference to the baseline, None with one pair. ``tau`` is
    minus infinity, and there is no interval, where ``lost`` of its ``runs`` failed or are missing."""

    label: str
    family: str
    bits: float
    tau: float
    low: float | None
    high: float | None
    runs: int
    lost: int = 0
    is_baseline: bool = False
    is_hollow: bool = False


def points(comparison: Comparison) -> list[Point]:
    """The comparison's arms that recorded their bytes.

    ValueError where there is no baseline, fewer than two arms, or no arm with a tau."""
    where = f"acceptance length against bytes: {comparison.setting.label}"
    if comparison.baseline is None:
        raise ValueError(f"{where} has no baseline")
    known = [_point(line, line.bits) for line in lines(comparison) if line.bits is not None]
    if len(known) < 2:
        raise ValueError(f"{where} has no two arms with bytes")
    if not any(math.isfinite(point.tau) for point in known):
        raise ValueError(f"{where}: every arm has lost a run")
    return known


def _point(line: Line, bits: float) -> Point:
    arm, change, tau = line.runs.arm, line.change, line.tau.mean
    low = high = None
    if is_lost(line):
        tau = -math.inf
    elif change is not None and change.mean is not None and change.low is not None and change.high is not None:
        low, high = tau + change.low - change.mean, tau + change.high - change.mean
    return Point(
        line.label,
        arm.family,
        bits,
        tau,
        low,
        high,
        runs=len(line.runs.runs) if change is None else len(change.seeds),
        lost=len(line.runs.failures) if change is None else len(change.lost),
        is_baseline=change is None,
        is_hollow=arm.compresses_gradients and arm.compresses_parameters,
    )


def draw(points: Sequence[Point], style: Style, foot: str = "") -> Figure:
    """The figure. Every arm is named beside its mark, or by a number that the foot explains where there is no room."""
    with style:
        figure, axes = style.axes()
        axes.set_xscale("log")
        axes.set_xlabel(style.say(BITS))
        axes.set_ylabel(style.say(TAU))
        low, high = _span(points)
        axes.set_ylim(low, high)
        bits = [point.bits for point in points]
        axes.set_xlim(min(bits) / 1.6, max(bits) * 1.6)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        edge = low + 0.5 * _ROOM * (high - low)
        if any(math.isinf(point.tau) for point in points):
            top = low + _ROOM * (high - low)
            axes.axhspan(low, top, color=BAND, zorder=0)
            ticks = [tick for tick in axes.get_yticks() if top < tick <= high]
            texts = [f"{tick:.6g}" for tick in ticks]
            axes.set_yticks([edge, *ticks], [style.say("diverged\nor missing"), *texts])
        names, marks, bars = [], [], []
        for point in sorted(points, key=lambda p: not p.is_baseline):
            spot = (point.bits, edge if math.isinf(point.tau) else point.tau)
            if point.is_baseline and math.isfinite(point.tau):
                axes.axhline(point.tau, color=GREY, lw=0.5 * style.stroke, ls="--", zorder=1)
            if point.low is not None and point.high is not None:
                ends = [(point.bits, point.low), (point.bits, point.high)]
                colour = look(point.family).colour
                axes.plot(*zip(*ends, strict=True), color=colour, lw=0.6 * style.stroke, zorder=4, gid="interval")
                bars.append((ends[0], ends[1]))
            mark = style.points(point.family, zorder=5, label="_" + point.label)
            mark |= {"mfc": "white", "mec": mark["color"]} if point.is_hollow else {}
            axes.plot(*([value] for value in spot), **mark)
            marks.append(spot)
            lost = f" ({point.lost}/{point.runs})" if math.isinf(point.tau) else ""
            names.append(Named(*spot, point.label + lost, look(point.family).colour))
        handles = []
        if bars:
            text = style.say("bars: 95 % interval of the difference to the baseline, by seed")
            handles.append(Line2D([], [], color=GREY, linewidth=0.6 * style.stroke, label=text))
        if any(point.is_hollow for point in points):
            text = style.say("hollow: parameters are compressed, too")
            handles.append(
                Line2D([], [], color=GREY, marker="o", linestyle="none", markerfacecolor="white", label=text)
            )
        if handles:
            axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.02, 1.0))
        style.foot(figure, foot)
        at_baseline = [((min(bits) / 2, p.tau), (max(bits) * 2, p.tau)) for p in points if p.is_baseline]
        without_room = place(axes, style, names, marks, [*bars, *at_baseline])
        if without_room:
            figure.supxlabel("")
            style.foot(figure, "\n".join([foot, _listed(without_room)]))
            for number, name in enumerate(without_room, start=1):
                axes.annotate(str(number), (name.x, name.y), (4, 4), textcoords="offset points", fontsize=style.small)
    return figure


def _listed(names: Sequence[Named]) -> str:
    return "; ".join(f"{number}: {name.text}" for number, name in enumerate(names, start=1))


def _span(points: Sequence[Point]) -> tuple[float, float]:
    """The limits of the vertical axis: from below the lowest end of an interval, with room for the band, to above the
    highest."""
    ends = [end for p in points for end in (p.tau, p.low, p.high) if end is not None and math.isfinite(end)]
    low, high = min(ends), max(ends)
    room = max(high - low, 0.01) * _ROOM / (1 - 2 * _ROOM)
    return low - 1.5 * room, high + room
