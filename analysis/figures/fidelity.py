"""How far the reduced gradient is from the exact one, and what feedback keeps back, over the steps of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from analysis.figures.drawing.labels import panels
from analysis.figures.drawing.style import Style
from analysis.figures.loss_curves import draw_curve, handles, notes, strength
from analysis.rows.curves.of_arms import TrainingCurve

QUANTITIES: Final = {
    "grad_rel_error": "error of the gradient, relative",
    "grad_cos_sim": "cosine with the exact gradient",
    "residual_norm": "residual, relative to the gradient",
}


def draw(curves: Mapping[str, Sequence[TrainingCurve]], style: Style, *, smooth: int = 1, foot: str = "") -> Figure:
    """The figure of ``curves`` by quantity (one of `QUANTITIES`). An arm without feedback has no residual to draw.

    ValueError when no quantity has a curve."""
    drawn = {name: _worth_drawing(name, curves.get(name, ())) for name in QUANTITIES}
    drawn = {name: kept for name, kept in drawn.items() if kept}
    if not drawn:
        raise ValueError("gradient error: no curve has a sample of it; train with --grad_error_every 20")
    every = list({curve.arm: curve for kept in drawn.values() for curve in kept}.values())
    with style:
        narrow = style.columns == "single"
        shape = (len(drawn), 1) if narrow else (1, len(drawn))
        high = style.width * (0.6 * len(drawn) if narrow else 0.34)
        figure, axes = panels(
            style, *shape, high, handles(every, style), 2 if narrow or len(every) > 12 else 4, squeeze=False
        )
        for plot, (name, kept) in zip(axes.flat, drawn.items(), strict=True):
            for curve in kept:
                draw_curve(plot, style, curve, strength(curve, every))
            if name != "grad_cos_sim":
                _log_scale(plot, [v for c in kept for v in (*c.low, *c.high)])
            plot.set_xlim(0, max(curve.x[-1] for curve in kept))
            plot.set_xlabel(style.say("step"))
            plot.set_title(style.say(QUANTITIES[name]))
        style.foot(figure, "\n".join([notes(every, style, smooth), *([foot] if foot else [])]))
        return figure


def _log_scale(plot: Axes, values: Sequence[float]) -> None:
    """A logarithmic scale with ticks at 1, 2 and 5 of a decade, or at 1 alone where there are many decades."""
    seen = [value for value in values if value > 0]
    plot.set_yscale("log")
    many = max(seen) > 300 * min(seen)
    plot.yaxis.set_major_locator(LogLocator(subs=(1.0,) if many else (1.0, 2.0, 5.0)))
    plot.yaxis.set_major_formatter("{x:g}")
    plot.yaxis.set_minor_locator(NullLocator())
    if not many:
        plot.set_ylim(min(seen) / 1.2, max(*seen, 2.2 * min(seen)) * 1.2)


def _worth_drawing(name: str, curves: Sequence[TrainingCurve]) -> list[TrainingCurve]:
    """The curves that a logarithmic scale can show: exact methods have no error, and many methods have no residual."""
    return [curve for curve in curves if name == "grad_cos_sim" or min(curve.mean) > 0]
