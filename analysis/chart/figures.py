"""The chart's two figures for a paper, and the interactive one of its page, from the places of all arms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from analysis.chart.places import RATES, Chart, Place
from analysis.figures import pareto, time_to_quality
from analysis.figures.drawing.style import Style
from analysis.report.opening import front
from analysis.report.opening.answer import Status
from analysis.statistics.answers import MARGIN
from analysis.statistics.intervals import within
from analysis.statistics.pareto import Point
from analysis.statistics.time_to_quality import Time, Times

_NAMED = {"single": 4, "double": 12}  # arms at a figure's foot
SIZES = ((1000, 560), (380, 520))  # px: of a screen, and of a phone


def interactive(chart: Chart, rate: str | None = None) -> tuple[str, str]:
    """Quality against bits as SVG that the page's script works on, for a screen and for a phone.

    ``rate``: against the seconds of a training behind the link of that name, whose front it then shows. ValueError when
    fewer than two arms have bits, or times, and quality."""
    base = chart.comparison.baseline
    axis, answered = front.BITS, [place.answered for place in chart.places]
    if rate is not None:
        took = {id(place.runs): place.seconds[rate] for place in chart.places}
        axis = front.Axis(f"predicted seconds of a training at {rate}", lambda one: took[id(one.line.runs)])
        answered = [replace(place.answered, status=_status_at(place, rate), why="") for place in chart.places]
    shown = front.drawable(answered, axis)
    title = f"Quality against {axis.label}, {chart.comparison.setting.label}"
    label = "" if base is None else base.arm.label
    wide, narrow = (front.svg(shown, width, height, label, str, title, axis) for width, height in SIZES)
    return wide, narrow


def _status_at(place: Place, rate: str) -> Status:
    """An arm's status by the time of a training behind a link, where it is judged by its place."""
    by_front: dict[str | None, Status] = {"yes": "front", "perhaps": "perhaps", "no": "beaten"}
    own = place.answered.status
    return by_front.get(place.at_links.get(rate), own) if own in by_front.values() else own


def quality(chart: Chart, style: Style, foot: str = "") -> Figure:
    """Quality against bits: every arm is named, beside its mark or in the list below; the front is the stepped line.

    The arms that are beaten everywhere are named at the foot. ValueError when fewer than two arms have bits."""
    points = [point for place in chart.places if (point := _point(place)) is not None]
    if len(points) < 2:
        raise ValueError("quality against bits: fewer than two arms have bits and a change of PPL")
    beaten = names_of(chart.beaten_everywhere, _NAMED[style.columns])
    lines = [f"beaten everywhere: {beaten}"] if beaten else []
    return pareto.draw(points, style, traffic="bits", foot="\n".join([*lines, foot] if foot else lines))


def names_of(some: Sequence[Place], most: int) -> str:
    """The names of arms, of ``most`` at the most, and how many more there are."""
    more = f" and {len(some) - most} more" if len(some) > most else ""
    return "; ".join(place.answered.label for place in some[:most]) + more  # names have commas


def _point(place: Place) -> Point | None:
    """The arm's point, at 1 over its bits; None where a figure cannot show it."""
    line, status = place.answered.line, place.answered.status
    is_baseline = status == "baseline"
    if not line.bits or (line.change is None and not is_baseline):
        return None
    change = line.change
    mean = 0.0 if change is None else change.mean
    lost = len(line.runs.failures) if change is None else len(change.lost)
    return Point(
        line.label,
        line.runs.arm.family,
        1 / line.bits,
        math.inf if mean is None or lost else mean,
        None if change is None else change.low,
        None if change is None else change.high,
        "within" if change is None else within(change, MARGIN),
        len(line.runs.runs) if change is None else change.n,
        lost,
        is_baseline,
    )


def times(chart: Chart, style: Style, foot: str = "") -> Figure:
    """Predicted time to quality behind each link, a line an arm; those that lose more than the margin never get there.

    ValueError when no time is known."""
    return time_to_quality.draw(of_links(chart), style, foot=foot, slowest_last=True)


def of_links(chart: Chart) -> Times:
    """The times to quality as the figure takes them. The target is the baseline's mean loss and the margin."""
    base = chart.comparison.baseline
    losses = [] if base is None else [loss for loss in base.losses.values() if loss is not None]
    if not losses:
        raise ValueError("time to quality: no run of the baseline ended well")
    target = statistics.fmean(losses) + math.log1p(chart.margin)
    known = [time for place in chart.places for time in _times(place)]
    return Times(target, chart.margin, [], known, [chart.why_no_times] if chart.why_no_times else [])


def _times(place: Place) -> Sequence[Time]:
    took = {rate: place.time_to_quality(name) for name, rate in RATES.items() if place.seconds[name] is not None}
    return [
        Time(place.runs.arm, rate, seconds, seconds, seconds, "predicted")
        for rate, seconds in took.items()
        if seconds is not None
    ]
