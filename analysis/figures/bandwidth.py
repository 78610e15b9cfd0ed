"""Step time against bandwidth: predictions as lines, measurements as points."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.figures.drawing.style import Style
from analysis.predict.predictor import Predictor, parse_rate, show_rate
from analysis.rows.comparing.comparisons import Comparison

SLOWEST, FASTEST = 5e7, 2e10  # bit/s
_POINTS = 120
_BUCKET_S = 5e-3  # of the emulated links: what the shaper lets through at once, at least 64 KiB


@dataclass(frozen=True)
class Series:
    """One arm's line or points in the figure, as pairs (bit/s, ms). ``strength`` tells arms of one family apart."""

    label: str
    family: str
    predicted: Sequence[tuple[float, float]] = ()
    measured: Sequence[tuple[float, float]] = ()
    strength: int = 0


def of_calibration(predictor: Predictor, model: str, cells: Iterable[Mapping[str, Any]] = ()) -> list[Series]:
    """A series for every calibrated method, the slowest first.

    Of ``cells``, a link matrix, it takes those of this model and world size."""
    here = [c for c in cells if c["model"] == model and c["ranks"] == predictor.world]
    rates = [SLOWEST * (FASTEST / SLOWEST) ** (i / _POINTS) for i in range(_POINTS + 1)]
    methods = sorted(predictor.calibration.methods, key=lambda m: -predictor.step_s(m, SLOWEST))
    families = [method.split()[0] for method in methods]
    series = []
    for place, method in enumerate(methods):
        lines = [(rate, 1e3 * predictor.step_s(method, rate, _bucket(rate, bool(here)))) for rate in rates]
        points = [(parse_rate(c["rate"]), float(c["step_ms_p50"])) for c in here if c["method"] == method]
        measured = sorted((rate, ms) for rate, ms in points if rate is not None)
        series.append(Series(method, families[place], lines, measured, families[:place].count(families[place])))
    return series


def of_comparisons(group: Sequence[Comparison]) -> list[Series]:
    """A series for every arm: its median step behind each link of a group (`groups.links`)."""
    points: dict[str, list[tuple[float, float]]] = {}
    families: dict[str, str] = {}
    for comparison in group:
        for runs in comparison.arms:
            times = [row["step_time_ms_p50"] for row in runs.ended_well if row.get("step_time_ms_p50")]
            if comparison.setting.link_rate and times:
                families.setdefault(runs.arm.label, runs.arm.family)
                at = comparison.setting.link_rate, statistics.median(times)
                points.setdefault(runs.arm.label, []).append(at)
    if not points:
        raise ValueError("no run behind a link was timed")
    before: Counter[str] = Counter()
    series = []
    for label, family in families.items():
        series.append(Series(label, family, (), sorted(points[label]), before[family]))
        before[family] += 1
    return series


def draw(series: Sequence[Series], style: Style, title: str = "", foot: str = "") -> Figure:
    """The figure; both axes are logarithmic."""
    with style:
        figure, axes = style.axes(height=0.9 if style.columns == "single" else 0.55)
        for one in series:
            if one.predicted:
                axes.plot(*zip(*one.predicted, strict=True), **style.line(one.family, one.strength), label="_predicted")
            if one.measured:
                if not one.predicted:
                    axes.plot(*zip(*one.measured, strict=True), **style.line(one.family, one.strength), alpha=0.6)
                axes.plot(*zip(*one.measured, strict=True), **style.points(one.family, 0.85), label="_measured")
            axes.plot([], [], **_key(one, style), label=one.label)
        axes.set(xscale="log", yscale="log", xlabel=style.say("bandwidth of a rank"), ylabel=style.say("step, ms"))
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: show_rate(rate)))
        axes.xaxis.set_minor_locator(NullLocator())
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)) if high > 10 * low else MaxNLocator(6))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_minor_locator(NullLocator())
        if title:
            axes.set_title(title)
        axes.legend(title=style.say("gradients + parameters"), alignment="left")
        if foot:
            style.foot(figure, foot)
    return figure


def _key(one: Series, style: Style) -> dict[str, Any]:
    """How the series is shown in the legend: its line, its marker, or both."""
    line = style.line(one.family, one.strength) if one.predicted else {}
    points = style.points(one.family, 0.85) if one.measured else {}
    return {name: value for name, value in points.items() if name != "ls"} | line if line else points


def _bucket(rate: float, shaped: bool) -> float:
    """Bytes in the emulated link's token bucket where the figure compares with emulated links, otherwise 0."""
    return max(rate / 8 * _BUCKET_S, 1 << 16) if shaped else 0.0
