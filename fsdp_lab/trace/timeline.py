"""A picture of one step: every rank's threads or streams, coloured by class of activity.

A pale bar shows messages that were posted, and under way for an unknown part of that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fsdp_lab.trace.reading.activity import Activity
from fsdp_lab.trace.reading.chrome import Trace
from fsdp_lab.trace.reading.host import NETWORK, TRAINING
from fsdp_lab.trace.reading.intervals import Interval, Intervals, intersection, union
from fsdp_lab.trace.reading.labels import CLASSES, Class

# blue, orange and green of Okabe and Ito, told apart with any colour vision
COLOURS: dict[Class, str] = {"compute": "#0072B2", "communication": "#E69F00", "compression": "#009E73"}
_PALE = "#F7DFB0"  # posted: communication for a part of this time
_BAR = 0.7


def draw(traces: Sequence[Trace], activities: Sequence[Activity], path: Path) -> None:
    """Draws the middle one of the steps that all ranks have. ValueError when ``path`` cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    number = (min(len(a.steps) for a in activities) - 1) // 2
    windows = [a.steps[number].whole for a in activities]
    comparable = len({trace.clock for trace in traces}) == 1
    origins = [min(w[0] for w in windows)] * len(windows) if comparable else [w[0] for w in windows]
    rows = [(i, lane) for i, a in enumerate(activities) for lane in _lanes(a, windows[i])]
    figure = Figure(figsize=(10, 1.3 + 0.42 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for y, (i, lane) in enumerate(rows):
        for kind in CLASSES:
            bars = _bars(activities[i], lane, kind, windows[i], origins[i])
            axes.broken_barh(bars, (y - _BAR / 2, _BAR), color=COLOURS[kind], linewidth=0)
        if lane == NETWORK:
            bars = _milliseconds(union(activities[i].posted), windows[i], origins[i])
            axes.broken_barh(bars, (y - _BAR / 6, _BAR / 3), color=_PALE, linewidth=0)
    for i, activity in enumerate(activities):
        mine = [y for y, row in enumerate(rows) if row[0] == i]
        if mine:
            _phases(axes, activity, number, origins[i], mine[0], mine[-1])
    axes.set_yticks(range(len(rows)), [f"rank {traces[i].rank}, {lane}" for i, lane in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.45, -0.85)
    axes.set_xlim(0, max(w[1] - o for w, o in zip(windows, origins, strict=True)) / 1e6)
    axes.set_xlabel(f"ms, step {number + 1} of {min(len(a.steps) for a in activities)} in the profile", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    named: dict[str, str] = {str(kind): colour for kind, colour in COLOURS.items()}
    if any(activity.posted for activity in activities):
        named["posted, for a part of this under way"] = _PALE
    handles = [Patch(color=colour) for colour in named.values()]
    figure.legend(handles, list(named), loc="outside upper right", ncols=len(named), fontsize=8, frameon=False)
    try:
        figure.savefig(path, dpi=160)
    except (OSError, ValueError) as error:  # ValueError: an ending that matplotlib does not know
        raise ValueError(f"--timeline: cannot write {path}: {getattr(error, 'strerror', None) or error}") from None


def _lanes(activity: Activity, window: Interval) -> list[str]:
    here = {b.lane for b in activity.busy if b.start < window[1] and b.end > window[0]}
    if intersection([window], union(activity.posted)):
        here.add(NETWORK)
    return sorted(here, key=lambda lane: (activity.device == "cpu" and lane != TRAINING, len(lane), lane))


def _bars(activity: Activity, lane: str, kind: Class, window: Interval, origin: int) -> list[tuple[float, float]]:
    intervals = union((b.start, b.end) for b in activity.busy if b.lane == lane and b.kind == kind)
    return _milliseconds(intervals, window, origin)


def _milliseconds(intervals: Intervals, window: Interval, origin: int) -> list[tuple[float, float]]:
    return [((start - origin) / 1e6, (end - start) / 1e6) for start, end in intersection([window], intervals)]


def _phases(axes: object, activity: Activity, number: int, origin: int, top: int, bottom: int) -> None:
    """Draws thin lines where phases begin and end, and their names above the rank's first bar."""
    for name, (start, end) in activity.steps[number].phases:
        if name == "other":
            continue
        left, right = (start - origin) / 1e6, (end - origin) / 1e6
        for x in (left, right):
            axes.plot([x, x], [top - 0.5, bottom + 0.45], color="0.5", linewidth=0.6)  # type: ignore[attr-defined]
        whole = activity.steps[number].whole
        if end - start > 0.06 * (whole[1] - whole[0]):
            axes.text((left + right) / 2, top - 0.4, name, fontsize=7, ha="center", va="bottom", color="0.3")  # type: ignore[attr-defined]
