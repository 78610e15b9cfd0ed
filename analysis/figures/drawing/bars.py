"""Horizontal bars, one an arm: what the charts of times and bytes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.drawing.data import Datum, arms, of_quantity, of_summary
from analysis.figures.drawing.palette import look
from analysis.figures.drawing.style import Style
from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.statistics.measures import Measure, over_seeds

THICK = 0.76  # of a bar's room
BASELINES = ("none", "identity", "bf16")


@dataclass(frozen=True)
class Part:
    """One piece of every bar. ``colour`` of None is each arm's own; ``hatch`` is for prints in grey."""

    quantity: str
    colour: str | None = None
    hatch: str = ""


def ordered(comparison: Comparison, measure: Measure) -> list[ArmRuns]:
    """The arms that have the measure: those that change nothing but the dtype first, then by the measure, smallest
    first."""

    def key(runs: ArmRuns) -> tuple[int, float, str]:
        arm, summary = runs.arm, over_seeds(runs, measure)
        plain = {arm.gradients, arm.parameters} <= {*BASELINES} and arm.gradient_settings == "{}"
        rank = BASELINES.index(arm.gradients) if plain else len(BASELINES)
        return rank, 0.0 if summary is None else summary.mean, arm.label

    return sorted((runs for runs in comparison.arms if over_seeds(runs, measure) is not None), key=key)


def data(comparison: Comparison, measures: Mapping[str, Measure], by: str, lacking: str) -> list[Datum]:
    """Every measure that an arm has, arms `ordered` by one of them. ValueError(``lacking``) when no arm has it."""
    known = ordered(comparison, measures[by])
    if not known:
        raise ValueError(lacking)
    summaries = [(runs, name, over_seeds(runs, measure)) for runs in known for name, measure in measures.items()]
    return [of_summary(runs, name, summary) for runs, name, summary in summaries if summary is not None]


def figure(style: Style, count: int, widths: Sequence[float], **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side (in a single column: below each other), high enough for ``count`` bars each."""
    inches = (count + 6.5) * 1.55 * style.small / 72
    if style.columns == "single":
        height = len(widths) * inches / style.width
        made, panels = style.axes(len(widths), 1, height=height, squeeze=False, **options)
    else:
        options["gridspec_kw"] = {"width_ratios": list(widths)}
        made, panels = style.axes(1, len(widths), height=inches / style.width, squeeze=False, **options)
    return made, list(panels.flat)


def stacked(axes: Axes, style: Style, data: Sequence[Datum], parts: Sequence[Part], total: str | None = None) -> None:
    """Draw the bars downwards, names at the left, and around each bar's end the interval of ``total``."""
    names = list(arms(data))
    places = list(range(len(names)))
    left = [0.0] * len(names)
    for part in parts:
        by_arm = of_quantity(data, part.quantity)
        values = [by_arm[name].value if name in by_arm else 0.0 for name in names]
        axes.barh(
            places,
            values,
            left=left,
            height=THICK,
            color=part.colour or [look(family).colour for family in arms(data).values()],
            hatch=part.hatch,
            edgecolor="white",
            linewidth=style.stroke / 4,
            label=style.say(part.quantity),
        )
        left = [a + b for a, b in zip(left, values, strict=True)]
    for name, one in (of_quantity(data, total) if total else {}).items():
        if one.low is not None and one.high is not None:
            _whiskers(axes, style, names.index(name), one)
    axes.set_yticks(places, names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlim(left=0)


def _whiskers(axes: Axes, style: Style, place: int, one: Datum) -> None:
    """The interval around a bar's end, cut off at 0: with few seeds it can reach below."""
    low, high = max(one.low or 0.0, 0.0), one.high or 0.0
    spread = [[max(one.value - low, 0.0)], [max(high - one.value, 0.0)]]
    axes.errorbar(
        [one.value], [place], xerr=spread, fmt="none", ecolor="black", elinewidth=style.stroke / 1.5, capsize=1.8
    )


def legend(figure: Figure, axes: Axes, style: Style) -> None:
    """Add the parts' legend above the first panel, as wide as the figure allows."""
    columns = 2 if style.columns == "single" else 4
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", ncols=columns, columnspacing=1.2)
