"""Break-even bandwidth: the link below which a method is faster than what it replaces. Always a prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.figures.drawing import bars
from analysis.figures.drawing.data import Datum, arms, of_quantity
from analysis.figures.drawing.palette import look
from analysis.figures.drawing.style import Style
from analysis.predict.predictor import Predictor, show_rate
from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.statistics import timing

ANY = 1e12  # bit/s: where "at any" is drawn
THAN_NONE, THAN_BF16 = "than none", "than bf16"


def of_calibration(predictor: Predictor) -> list[Datum]:
    """The bit/s below which each calibrated method is faster, by the model of a step; infinite: at any rate."""
    data = []
    for p in predictor.ranked(None):
        for quantity, rate in ((THAN_NONE, p.below_none), (THAN_BF16, p.below_bf16)):
            data += [Datum(p.method, p.method.split()[0], quantity, rate)] if rate is not None else []
    return _checked(data)


def of_comparison(comparison: Comparison) -> list[Datum]:
    """The bit/s below which each arm that saves bytes is faster, by its bytes and codec times (`timing.break_even`)."""
    bases = {THAN_NONE: _arm(comparison, "none", "none"), THAN_BF16: _arm(comparison, "bf16", "bf16")}
    data = []
    for runs in comparison.arms:
        for quantity, base in bases.items():
            rate = None if base is None else timing.break_even(runs, base)
            arm, seeds = runs.arm, len(runs.ended_well)
            data += [Datum(arm.label, arm.family, quantity, rate, n=seeds)] if rate is not None else []
    return _checked(data)


def _arm(comparison: Comparison, gradients: str, parameters: str) -> ArmRuns | None:
    wanted = (gradients, parameters)
    return next((runs for runs in comparison.arms if (runs.arm.gradients, runs.arm.parameters) == wanted), None)


def _checked(data: list[Datum]) -> list[Datum]:
    """The data sorted, the method that pays on the fastest link first. ValueError when no method ever pays."""
    if not data:
        raise ValueError("no method whose bytes and codec times are known saves bytes against none or bf16")
    best = {arm: max(one.value for one in data if one.arm == arm) for arm in arms(data)}
    return sorted(data, key=lambda one: (-best[one.arm], one.arm, one.quantity))


def draw(data: Sequence[Datum], style: Style, foot: str = "") -> Figure:
    """The figure: a row for each method, filled marks against none, hollow ones against bf16.

    A method that pays nowhere in the range has no mark."""
    names = list(arms(data))
    with style:
        figure, (axes,) = bars.figure(style, len(names), (1,))
        for quantity in (THAN_NONE, THAN_BF16):
            points = of_quantity(data, quantity)
            for arm, one in points.items():
                mark = _marker(one.family, quantity, style)
                axes.plot(min(one.value, ANY), names.index(arm), **mark, clip_on=False)
            if points:
                axes.plot([], [], **_marker("none", quantity, style), label=style.say(quantity))
        rates = [min(one.value, ANY) for one in data]
        decades = 10.0 ** math.floor(math.log10(min(rates))), 10.0 ** math.ceil(math.log10(max(rates)))
        axes.set(xscale="log", xlim=(decades[0] / 1.3, decades[1] * 1.3), ylim=(len(names) - 0.4, -0.6))
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(LogLocator(base=10 if style.columns == "double" else 100, numticks=9))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: _tick(rate, style)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(style.say("faster below this bandwidth"))
        axes.spines["left"].set_visible(False)
        bars.legend(figure, axes, style)
        style.foot(figure, foot)
    return figure


def _marker(family: str, quantity: str, style: Style) -> dict[str, Any]:
    hollow, colour = quantity == THAN_BF16, look(family).colour
    return {
        "marker": "o",
        "ls": "none",
        "ms": style.font * (0.75 if hollow else 0.6),
        "mfc": "none" if hollow else colour,
        "mec": colour,
        "mew": style.stroke * (0.9 if hollow else 0),
    }


def _tick(rate: float, style: Style) -> str:
    return style.say("at any") if math.isclose(rate, ANY) else show_rate(rate)
