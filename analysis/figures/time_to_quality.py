"""Time to a validation perplexity against the link's rate, a line an arm; what never gets there stands in the band at
the top. Filled marks are measured steps, hollow ones predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.figures.drawing.labels import Named, end_labels, panels
from analysis.figures.drawing.palette import look
from analysis.figures.drawing.style import Style
from analysis.figures.pareto import BAND
from analysis.rows.comparing.arms import Arm
from analysis.statistics.time_to_quality import Rate, Time, Times

_MOST_MISSES = 6  # arms that never get there, whose marks can be told apart


def draw(times: Times, style: Style, *, foot: str = "", slowest_last: bool = False) -> Figure:
    """The figure: links from slow to fast at equal distances, "no limit" last; ``slowest_last``: from fast to slow, so
    that the names of many arms stand where their lines are far apart. More than a few arms that never get there, behind
    any link, are named at the foot alone. ValueError when there is nothing to draw."""
    if not times.times:
        why = "; ".join(times.left_out[:3]) or "nothing was timed"
        raise ValueError(f"time to quality: no time of a step is known ({why})")
    rates = sorted({time.rate for time in times.times}, key=lambda rate: math.inf if rate is None else rate)
    rates = rates[::-1] if slowest_last else rates
    times, misses = _without_many_misses(times)
    arms = list(dict.fromkeys(time.arm for time in times.times))
    notes = "\n".join([*_notes(times, style), *_of_misses(misses, style), *([foot] if foot else [])])
    narrow = style.columns == "single"
    with style:
        if narrow:
            longest = max(len(arm.label) for arm in arms)
            list_columns = 2 if (0.56 * longest + 8) * style.small / 72 < style.width / 2 else 1
            handles, foot_high = _handles(arms, style), style.foot_height(notes)
            figure, axes = panels(style, 1, 1, 0.85 * style.width, handles, list_columns, foot_high)
        else:
            names = (len(arms) * 1.2 * style.small + 6 * style.font) / 72 + style.foot_height(notes)
            figure, axes = style.axes(height=max(names / style.width, 0.45))
        axes.set_xlim(-0.5, len(rates) - 0.5)
        edge = _scale(axes, style, times)
        ends = []
        for arm in arms:
            mine = sorted((time for time in times.times if time.arm == arm), key=lambda t: rates.index(t.rate))
            _draw_arm(axes, style, mine, rates, edge, _dashes(arm, arms))
            height = edge if math.isinf(mine[-1].seconds) else mine[-1].seconds
            ends.append(Named(rates.index(mine[-1].rate), height, arm.label, look(arm.family).colour))
        for place, rate in enumerate(rates):
            _draw_misses(axes, style, place, [t for t in times.times if t.rate == rate and math.isinf(t.seconds)], edge)
        axes.set_xticks(range(len(rates)), [_rate(rate, style) for rate in rates])
        axes.set_xlabel(style.say("what a rank may send"))
        axes.set_ylabel(style.say("time to PPL {ppl:.4g}, s", ppl=times.target_ppl))
        style.foot(figure, notes)
        if not narrow:
            end_labels(axes, style, ends)
        return figure


def _without_many_misses(times: Times) -> tuple[Times, list[Arm]]:
    """The times of arms that get there behind some link, and the others; of few others the times are kept."""
    by_arm: dict[Arm, list[Time]] = {}
    for time in times.times:
        by_arm.setdefault(time.arm, []).append(time)
    misses = [arm for arm, mine in by_arm.items() if all(math.isinf(time.seconds) for time in mine)]
    if not _MOST_MISSES < len(misses) < len(by_arm):
        return times, []
    return replace(times, times=[time for time in times.times if time.arm not in misses]), misses


def _of_misses(misses: Sequence[Arm], style: Style) -> list[str]:
    return [style.say("never: {arms}", arms="; ".join(arm.label for arm in misses))] if misses else []


def _notes(times: Times, style: Style) -> list[str]:
    """What the marks that are there mean."""
    texts = []
    if any(time.high > time.low for time in times.times):
        texts.append(style.say("median over seeds, bars from best to worst"))
    drawn = {time.source for time in times.times if not math.isinf(time.seconds)}
    if len(drawn) > 1:
        texts.append(style.say("filled: step measured, hollow: predicted"))
    elif drawn:
        only_predicted = drawn == {"predicted"}
        texts.append(style.say("step predicted" if only_predicted else "step measured"))
    if times.margin is not None:
        texts.append(style.say("target: {change:g} % above the baseline's PPL", change=100 * times.margin))
    return texts


def _draw_arm(axes: Any, style: Style, mine: list[Time], rates: list[Rate], edge: float, dashes: int) -> None:
    """Draw line, marks and intervals of the links behind which the arm reaches the target."""
    family = mine[0].arm.family
    reached = [time for time in mine if not math.isinf(time.seconds)]
    places = [rates.index(time.rate) for time in reached]
    axes.plot(places, [time.seconds for time in reached], **style.line(family, dashes, label="_" + mine[0].arm.label))
    for x, time in zip(places, reached, strict=True):
        axes.plot([x], [time.seconds], **_mark(style, time))
        if time.high > time.low:
            spread = [time.low, min(time.high, edge)]
            axes.plot([x, x], spread, color=look(family).colour, lw=0.6 * style.stroke, gid="interval")


def _draw_misses(axes: Any, style: Style, place: int, missed: list[Time], edge: float) -> None:
    """Draw the arms that miss the target side by side, around the link's place."""
    gap = min(1.4 * 0.6 * style.font / 72 / (0.7 * style.width) * (axes.get_xlim()[1] + 1), 0.9 / max(len(missed), 1))
    for number, time in enumerate(missed):
        axes.plot([place + (number - (len(missed) - 1) / 2) * gap], [edge], **_mark(style, time, gid="miss"))


def _mark(style: Style, time: Time, **more: Any) -> dict[str, Any]:
    mark = style.points(time.arm.family, 0.9, zorder=5, **more)
    if time.source == "predicted":
        mark |= {"mfc": "white", "mec": look(time.arm.family).colour, "mew": 0.8 * style.stroke}
    return mark


def _scale(axes: Any, style: Style, times: Times) -> float:
    """Set the vertical scale; return the height at which misses are drawn."""
    seconds = [time.seconds for time in times.times if not math.isinf(time.seconds)] or [1.0]
    low, high = min(seconds), max(seconds)
    span = max(math.log(high / low), 0.5)
    floor = low * math.exp(-0.08 * span)
    ceiling, edge, roof = (high * math.exp(part * span) for part in (0.1, 0.17, 0.24))
    axes.set_yscale("log")
    missed = any(math.isinf(time.seconds) for time in times.times)
    axes.set_ylim(floor, roof if missed else ceiling)
    shown = _ticks(floor, ceiling)
    labels = [f"{tick:,.4g}" for tick in shown]
    axes.set_yticks([*shown, *([edge] if missed else [])], [*labels, *([style.say("never")] if missed else [])])
    axes.set_yticks([], minor=True)
    if missed:
        axes.axhspan(ceiling, roof, color=BAND, lw=0, zorder=2.2)  # over the grid's line through it
    return edge


def _ticks(floor: float, ceiling: float) -> list[float]:
    decades = [m * 10.0**e for e in range(-3, 8) for m in (1, 2, 5)]
    ticks = decades if ceiling > 10 * floor else MaxNLocator(6).tick_values(floor, ceiling)
    return [float(tick) for tick in ticks if floor <= tick <= ceiling]


def _dashes(arm: Arm, arms: list[Arm]) -> int:
    return [other for other in arms if other.family == arm.family].index(arm)


def _handles(arms: list[Arm], style: Style) -> list[Any]:
    return [
        Line2D([], [], **style.marked_line(arm.family, _dashes(arm, arms), label=arm.label, markevery=[0]))
        for arm in arms
    ]


def _rate(rate: Rate, style: Style) -> str:
    if rate is None:
        return style.say("no limit")
    return f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"
