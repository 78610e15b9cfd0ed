"""Loss over training: an arm's mean over seeds, from the least seed to the greatest, and how far it is above the
baseline's (the same seeds at the same steps). A cross ends the line of an arm of which a run failed or diverged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures.drawing.labels import Named, end_labels, panels
from analysis.figures.drawing.palette import look
from analysis.figures.drawing.style import Style
from analysis.rows.curves.of_arms import Along, TrainingCurve, above

X_LABELS: Final[dict[Along, str]] = {
    "step": "step",
    "tokens": "tokens trained on",
    "train_seconds": "training time, s",
}
Y_LABELS: Final = {"val_loss": "validation loss, nats a token", "train_loss": "training loss, nats a token"}
LINEAR: Final = 0.02  # nats
_START = 0.1  # of training, in which losses fall too steeply to be shown with what follows


def draw(
    curves: Sequence[TrainingCurve],
    style: Style,
    *,
    quantity: str = "train_loss",
    along: Along = "step",
    smooth: int = 1,
    baseline: str = "none",
    foot: str = "",
) -> Figure:
    """The figure of one quantity's ``curves`` (a key of `Y_LABELS`), smoothed over ``smooth`` points.

    The second plot, of differences, is left out where no curve has the baseline's label."""
    base = next((curve for curve in curves if curve.arm.label == baseline), None)
    differences = (
        [] if base is None else [above_base for curve in curves if (above_base := above(curve, base)) is not None]
    )
    with style:
        figure, plots = _plots(style, curves, 2 if differences else 1)
        for curve in curves:
            draw_curve(plots[0], style, curve, strength(curve, curves))
        plots[0].set_ylim(top=_highest_after_the_start(curves))
        plots[0].set_ylabel(style.say(Y_LABELS[quantity]))
        for difference in differences:
            draw_curve(plots[1], style, difference, strength(difference, curves))
        if differences:
            _difference_scale(plots[1], differences)
            plots[1].set_ylabel(style.say("loss above that of {baseline}, nats", baseline=baseline))
        for plot in plots:
            plot.set_xlim(0, max(curve.x[-1] for curve in curves))
            plot.set_xlabel(style.say(X_LABELS[along]))
        style.foot(figure, "\n".join([notes(curves, style, smooth), *([foot] if foot else [])]))
        if style.columns == "double":
            named = [
                Named(curve.x[-1], curve.mean[-1], curve.arm.label, look(curve.arm.family).colour)
                for curve in (differences or curves)
            ]
            end_labels(plots[-1], style, named)
        return figure


def handles(curves: Sequence[TrainingCurve], style: Style) -> list[Line2D]:
    """What the list of names shows for each arm."""
    return [
        Line2D([], [], **style.marked_line(c.arm.family, strength(c, curves), label=c.arm.label, markevery=[0]))
        for c in sorted(curves, key=lambda c: c.arm.label)
    ]


def draw_curve(plot: Any, style: Style, curve: TrainingCurve, dashes: int) -> None:
    """Draw the line of means, the field between the seeds, and a cross where a run was lost."""
    colour = look(curve.arm.family).colour
    plot.plot(curve.x, curve.mean, **style.marked_line(curve.arm.family, dashes, label="_" + curve.arm.label))
    if curve.seeds > 1:
        plot.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.18, lw=0)
    if curve.ended:
        plot.plot(curve.x[-1:], curve.mean[-1:], "x", color=colour, mew=style.stroke, zorder=5, clip_on=False)


def strength(curve: TrainingCurve, curves: Sequence[TrainingCurve]) -> int:
    """The arm's place among those of its family, which decides its dashes."""
    family = [other.arm for other in curves if other.arm.family == curve.arm.family]
    return family.index(curve.arm)


def notes(curves: Sequence[TrainingCurve], style: Style, smooth: int) -> str:
    """What lines and fields are, for the figure's foot."""
    least, most = min(c.seeds for c in curves), max(c.seeds for c in curves)
    seeds = str(most) if least == most else f"{least}-{most}"
    text = style.say("one run an arm") if most == 1 else style.say("mean and range of {seeds} seeds", seeds=seeds)
    if smooth > 1:
        text += "; " + style.say("moving mean of {points} points", points=smooth)
    if any(curve.ended for curve in curves):
        text += "; " + style.say("cross: a run failed or diverged")
    return text


def _plots(style: Style, curves: Sequence[TrainingCurve], plots: int) -> tuple[Figure, list[Any]]:
    """The figure and its plots.

    Two columns: side by side, as high as the names at the right need. One column: one above the other, with a list of
    names."""
    if style.columns == "single":
        figure, axes = panels(
            style, plots, 1, 0.68 * plots * style.width, handles(curves, style), list_columns=2, squeeze=False
        )
    else:
        names = (len(curves) * 1.2 * style.small + 5.5 * style.font) / 72
        figure, axes = style.axes(1, plots, height=max(names / style.width, 0.42), squeeze=False)
    return figure, list(axes.flat)


def _highest_after_the_start(curves: Sequence[TrainingCurve]) -> float:
    """The highest value of all curves beyond the first tenth of the longest one."""
    begin = _START * max(curve.x[-1] for curve in curves)
    seen = [high for curve in curves for x, high in zip(curve.x, curve.high, strict=True) if x >= begin]
    lasts = [curve.high[-1] for curve in curves]
    least = min(low for curve in curves for low in curve.low)
    highest = max([*seen, *lasts])
    return highest + 0.04 * (highest - least)


def _difference_scale(plot: Any, differences: Sequence[TrainingCurve]) -> None:
    """Set the scale of the differences: it has room for all but the first quarter of every curve.

    Beyond 0.02 nats, which is 2 % of perplexity, the scale is logarithmic."""
    later = [
        value
        for curve in differences
        for x, low, high in zip(curve.x, curve.low, curve.high, strict=True)
        if x >= 0.25 * curve.x[-1]
        for value in (low, high)
    ]
    low, high = min(*later, -0.01), max(*later, 0.01)
    plot.set_yscale("symlog", linthresh=LINEAR, linscale=1.0)
    plot.set_ylim(1.3 * low, 1.3 * high)
    ticks = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
    shown = [tick for tick in (*(-t for t in ticks[::-1]), 0.0, *ticks) if 1.3 * low <= tick <= 1.3 * high]
    plot.set_yticks(shown, [f"{tick:+g}" if tick else "0" for tick in shown])
    plot.set_yticks([], minor=True)
