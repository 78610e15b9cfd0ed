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
from analysis.rows.curves import Along, Course, above

X_LABELS: Final[dict[Along, str]] = {
    "step": "step",
    "tokens": "tokens trained on",
    "train_seconds": "training time, s",
}
Y_LABELS: Final = {"val_loss": "validation loss, nats a token", "train_loss": "training loss, nats a token"}
LINEAR: Final = 0.02  # nats
_START = 0.1  # of training, in which losses fall too steeply to be shown with what follows


def draw(
    courses: Sequence[Course],
    style: Style,
    *,
    quantity: str = "train_loss",
    along: Along = "step",
    smooth: int = 1,
    baseline: str = "none",
    foot: str = "",
) -> Figure:
    """``courses`` of ``quantity`` (a key of `Y_LABELS`), smoothed over ``smooth`` points.

    The second plot is left out where the baseline's label has no course."""
    base = next((course for course in courses if course.arm.label == baseline), None)
    differences = [] if base is None else [found for course in courses if (found := above(course, base)) is not None]
    with style:
        figure, plots = _plots(style, courses, 2 if differences else 1)
        for course in courses:
            draw_course(plots[0], style, course, strength(course, courses))
        plots[0].set_ylim(top=_highest_after_the_start(courses))
        plots[0].set_ylabel(style.say(Y_LABELS[quantity]))
        for difference in differences:
            draw_course(plots[1], style, difference, strength(difference, courses))
        if differences:
            _difference_scale(plots[1], differences)
            plots[1].set_ylabel(style.say("loss above that of {baseline}, nats", baseline=baseline))
        for plot in plots:
            plot.set_xlim(0, max(course.x[-1] for course in courses))
            plot.set_xlabel(style.say(X_LABELS[along]))
        style.foot(figure, "\n".join([notes(courses, style, smooth), *([foot] if foot else [])]))
        if style.columns == "double":
            named = [
                Named(course.x[-1], course.mean[-1], course.arm.label, look(course.arm.family).colour)
                for course in (differences or courses)
            ]
            end_labels(plots[-1], style, named)
        return figure


def handles(courses: Sequence[Course], style: Style) -> list[Line2D]:
    """What a list of names shows for each arm."""
    return [
        Line2D([], [], **style.marked_line(c.arm.family, strength(c, courses), label=c.arm.label, markevery=[0]))
        for c in sorted(courses, key=lambda c: c.arm.label)
    ]


def draw_course(plot: Any, style: Style, course: Course, dashes: int) -> None:
    """The line of means, the field between the seeds, and a cross where a run was lost."""
    colour = look(course.arm.family).colour
    plot.plot(course.x, course.mean, **style.marked_line(course.arm.family, dashes, label="_" + course.arm.label))
    if course.seeds > 1:
        plot.fill_between(course.x, course.low, course.high, color=colour, alpha=0.18, lw=0)
    if course.ended:
        plot.plot(course.x[-1:], course.mean[-1:], "x", color=colour, mew=style.stroke, zorder=5, clip_on=False)


def strength(course: Course, courses: Sequence[Course]) -> int:
    """The arm's place among those of its family, which decides its dashes."""
    family = [other.arm for other in courses if other.arm.family == course.arm.family]
    return family.index(course.arm)


def notes(courses: Sequence[Course], style: Style, smooth: int) -> str:
    """What lines and fields are, for the foot."""
    least, most = min(c.seeds for c in courses), max(c.seeds for c in courses)
    seeds = str(most) if least == most else f"{least}-{most}"
    text = style.say("one run an arm") if most == 1 else style.say("mean and range of {seeds} seeds", seeds=seeds)
    if smooth > 1:
        text += "; " + style.say("moving mean of {points} points", points=smooth)
    if any(course.ended for course in courses):
        text += "; " + style.say("cross: a run failed or diverged")
    return text


def _plots(style: Style, courses: Sequence[Course], plots: int) -> tuple[Figure, list[Any]]:
    """On a page side by side and as high as the names at the right need; in a column above one another and a list."""
    if style.columns == "single":
        figure, axes = panels(
            style, plots, 1, 0.68 * plots * style.width, handles(courses, style), list_columns=2, squeeze=False
        )
    else:
        names = (len(courses) * 1.2 * style.small + 5.5 * style.font) / 72
        figure, axes = style.axes(1, plots, height=max(names / style.width, 0.42), squeeze=False)
    return figure, list(axes.flat)


def _highest_after_the_start(courses: Sequence[Course]) -> float:
    """The highest of all lines beyond the first tenth of the longest."""
    begin = _START * max(course.x[-1] for course in courses)
    seen = [high for course in courses for x, high in zip(course.x, course.high, strict=True) if x >= begin]
    lasts = [course.high[-1] for course in courses]
    least = min(low for course in courses for low in course.low)
    highest = max([*seen, *lasts])
    return highest + 0.04 * (highest - least)


def _difference_scale(plot: Any, differences: Sequence[Course]) -> None:
    """Room for all but the first quarter of every line, which may leave the plot; beyond ±0.02 nats, 2 % of perplexity,
    the scale is logarithmic."""
    later = [
        value
        for course in differences
        for x, low, high in zip(course.x, course.low, course.high, strict=True)
        if x >= 0.25 * course.x[-1]
        for value in (low, high)
    ]
    low, high = min(*later, -0.01), max(*later, 0.01)
    plot.set_yscale("symlog", linthresh=LINEAR, linscale=1.0)
    plot.set_ylim(1.3 * low, 1.3 * high)
    ticks = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
    shown = [tick for tick in (*(-t for t in ticks[::-1]), 0.0, *ticks) if 1.3 * low <= tick <= 1.3 * high]
    plot.set_yticks(shown, [f"{tick:+g}" if tick else "0" for tick in shown])
    plot.set_yticks([], minor=True)
