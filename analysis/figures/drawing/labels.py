"""Names of points and lines, where they cover nothing: beside them, or in a list below."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox, blended_transform_factory

from analysis.figures.drawing.palette import shade
from analysis.figures.drawing.style import Style

# directions in degrees, the preferred ones first; distances in ems
_ANGLES = (0, 45, -45, 90, -90, 135, -135, 180, 22, -22, 158, -158, 68, -68)
_DISTANCES = (0.8, 1.2, 1.8, 2.6, 3.6, 4.8)
_LEADER_FROM = 1.3  # ems; nearer names need no line to their point
_TOO_BAD = 3.5  # of `_cost`: such a name is not written


@dataclass(frozen=True)
class Named:
    """A point in data coordinates and its name."""

    x: float
    y: float
    text: str
    colour: str


Place = tuple[float, float]


def place(
    axes: Axes,
    style: Style,
    points: Sequence[Named],
    marks: Sequence[Place],
    lines: Sequence[tuple[Place, Place]] = (),
    always: Collection[str] = (),
    apart: float = math.inf,
) -> list[Named]:
    """Write the names for which there is room, the first ones first; return the points whose names have none.

    ``marks`` are all points drawn, which no name may cover; ``lines`` are vertical, horizontal or short ones, which
    names avoid where they can. All are in data coordinates. Names among ``always``, such as numbers that a list
    explains, are written in any case: farther away if need be. Above ``apart``, a height, are only names of points
    there. The figure's layout must not change afterwards."""
    figure = axes.figure
    figure.draw_without_rendering()  # type: ignore[union-attr]
    em = style.small * figure.dpi / 72
    spots = [_pixels(axes, mark) for mark in marks]
    taken = [_around(spot, 0.6 * em) for spot in spots]
    taken += [_extent(text) for text in axes.texts]
    better_not = [_box(_pixels(axes, start), _pixels(axes, end)).padded(0.1 * em) for start, end in lines]
    whole = axes.get_window_extent().padded(-0.1 * em)
    below = (
        whole if math.isinf(apart) else Bbox.from_extents(whole.x0, whole.y0, whole.x1, _pixels(axes, (1, apart))[1])
    )
    without_room = []
    for point in points:
        at = _pixels(axes, (point.x, point.y))
        inside = whole if point.y > apart else below
        text = axes.annotate(
            point.text,
            (point.x, point.y),
            (0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=style.small,
            color=shade(point.colour, -0.3),
            zorder=6,
            bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.4},  # over a line that it must cover
        )
        text.set_in_layout(False)
        size = _extent(text)
        cost, free = _best(at, size, spots, taken, better_not, inside, em)
        if point.text in always and free is None:
            cost, free = 0.0, _anywhere(at, size, taken, inside, em)
        if free is None or (cost > _TOO_BAD and point.text not in always):
            text.remove()
            without_room.append(point)
            continue
        centre = (free.x0 + free.width / 2, free.y0 + free.height / 2)
        text.set_position(((centre[0] - at[0]) * 72 / figure.dpi, (centre[1] - at[1]) * 72 / figure.dpi))
        taken.append(free.padded(0.25 * em, 0))
        if math.dist(at, _nearest(free, at)) >= _LEADER_FROM * em:
            _lead(axes, style, point, at, _nearest(free, at))
            better_not += [_around(spot, 0.1 * em) for spot in _along(at, _nearest(free, at))]
    return without_room


def pieces(axes: Axes, at: Sequence[Place], count: int = 12) -> list[tuple[Place, Place]]:
    """A line through places in data coordinates, cut into short pieces, straight on the axes' scales."""
    to_pixels = axes.transData
    found = []
    for start, end in itertools.pairwise(_pixels(axes, place) for place in at):
        cuts = [
            (start[0] + (end[0] - start[0]) * i / count, start[1] + (end[1] - start[1]) * i / count)
            for i in range(count + 1)
        ]
        back = [(float(x), float(y)) for x, y in to_pixels.inverted().transform(cuts)]
        found += list(itertools.pairwise(back))
    return found


def end_labels(axes: Axes, style: Style, ends: Sequence[Named]) -> None:
    """Write names at the right of the axes, each level with the end of its line as nearly as the others leave room.

    Room is made at the figure's right, so its layout must not change afterwards. Nothing may stand right of the axes.
    """
    if not ends:
        return
    figure = axes.figure
    texts = [
        axes.annotate(
            end.text,
            (1, end.y),
            (1.4 * style.small, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            color=shade(end.colour, -0.25),
            fontsize=style.small,
            annotation_clip=False,
            in_layout=False,
        )
        for end in ends
    ]
    widest = max(_extent(text).width for text in texts) + 2 * style.small * figure.dpi / 72
    figure.set_layout_engine("constrained", rect=(0, 0, 1 - widest / figure.bbox.width, 1))  # type: ignore[union-attr]
    figure.draw_without_rendering()  # type: ignore[union-attr]
    line = 1.15 * style.small * figure.dpi / 72
    wanted = [_pixels(axes, (end.x, end.y))[1] for end in ends]
    window = axes.get_window_extent()
    for text, at, moved in zip(
        texts, wanted, _apart(wanted, line, window.y0 + line / 2, window.y1 - line / 2), strict=True
    ):
        up = (moved - at) * 72 / figure.dpi
        text.set_position((1.4 * style.small, up))
        axes.annotate(
            "",
            (1, text.xy[1]),
            (1.3 * style.small, up),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "lw": 0.35 * style.stroke, "color": text.get_color(), "shrinkB": 1},
            annotation_clip=False,
            in_layout=False,
        )


def panels(
    style: Style,
    rows: int,
    columns: int,
    high: float,
    handles: Sequence[Line2D] = (),
    list_columns: int = 1,
    foot_high: float = 0.0,
    **more: Any,
) -> tuple[Figure, Any]:
    """Axes of ``high`` inches and, below them, a list of ``handles`` by their labels. ``foot_high``: inches that a foot
    takes from both, where there is a list. ``more`` are arguments of subplots."""
    if not handles:
        return style.axes(rows, columns, height=high / style.width, **more)
    list_high = (math.ceil(len(handles) / list_columns) * 1.5 + 0.8) * style.small / 72
    figure = style.sheet(high + list_high + foot_high)
    grid = figure.add_gridspec(2, 1, height_ratios=[high, list_high])
    axes = grid[0].subgridspec(rows, columns).subplots(**more)
    below = figure.add_subplot(grid[1])
    below.set_axis_off()
    known = below.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(0, 0.5),
        bbox_transform=blended_transform_factory(figure.transFigure, below.transAxes),
        ncols=list_columns,
        handlelength=1.2 if all(handle.get_linestyle() == "None" for handle in handles) else 3.4,
        handletextpad=0.4,
        columnspacing=2,
    )
    known.set_in_layout(False)  # it may be wider than the axes
    return figure, axes


def _apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The places nearest to those wanted (least squares) that are ``gap`` apart, in the same order.

    They lie between ``low`` and ``high`` as far as they fit."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    groups: list[tuple[float, int]] = []  # mean of what is wanted less the places before in the group, how many
    for rank, index in enumerate(order):
        groups.append((places[index] - rank * gap, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (a, n), (b, m) = groups[-2:]
            groups[-2:] = [((a * n + b * m) / (n + m), n + m)]
    last = high - (len(places) - 1) * gap
    fitted = [max(min(value, last), low) for value, count in groups for _ in range(count)]
    result = [0.0] * len(places)
    for rank, index in enumerate(order):
        result[index] = fitted[rank] + rank * gap
    return result


def _best(
    at: Place,
    size: Bbox,
    marks: Sequence[Place],
    taken: Sequence[Bbox],
    better_not: Sequence[Bbox],
    inside: Bbox,
    em: float,
) -> tuple[float, Bbox | None]:
    """The box that fits and has the lowest `_cost`; of equal ones the first, whose direction is preferred."""
    best, cheapest = None, math.inf
    for distance in _DISTANCES:
        if cheapest <= distance:  # none is cheaper than its distance
            break
        for box in _around_point(at, size, distance * em):
            if _fits(box, taken, inside) and (cost := _cost(box, at, marks, taken, better_not, em)) < cheapest:
                best, cheapest = box, cost
    return cheapest, best


def _anywhere(at: Place, size: Bbox, taken: Sequence[Bbox], inside: Bbox, em: float) -> Bbox:
    """The nearest box that covers no name and no mark, however far; beside the point where the whole plot is full."""
    far = math.hypot(inside.width, inside.height)
    steps = (_DISTANCES[-1] * em + 0.8 * em * i for i in range(int(far / (0.8 * em)) + 1))
    boxes = (box for distance in steps for box in _around_point(at, size, distance))
    return next((box for box in boxes if _fits(box, taken, inside)), next(_around_point(at, size, 0.8 * em)))


def _around_point(at: Place, size: Bbox, distance: float) -> Iterator[Bbox]:
    """Boxes of the name's size that touch a circle around the point from outside."""
    for degrees in _ANGLES:
        cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        x = at[0] + cosine * distance + _sign(cosine) * size.width / 2
        y = at[1] + sine * distance + _sign(sine) * size.height / 2
        yield Bbox.from_bounds(x - size.width / 2, y - size.height / 2, size.width, size.height)


def _cost(
    box: Bbox, at: Place, marks: Sequence[Place], taken: Sequence[Bbox], better_not: Sequence[Bbox], em: float
) -> float:
    """How bad a box is: its distance in ems, and more for what it covers.

    Two ems more for covering a line or for being nearer to another mark; one more for a name or mark under the name's
    own line."""
    end = _nearest(box, at)
    far = math.dist(at, end)
    covered = sum(box.overlaps(line) for line in better_not)
    strange = any(math.dist(mark, _nearest(box, mark)) < far for mark in marks if mark != at)
    way = _along(at, end) if far >= _LEADER_FROM * em else []
    crossed = sum(any(other.contains(*spot) for spot in way) for other in taken)
    return round(far / em, 1) + 2 * covered + 2 * strange + crossed


def _along(start: Place, end: Place) -> list[Place]:
    """Some places on the way from the point to the name, the point's own mark left out."""
    parts = (0.4, 0.55, 0.7, 0.85)
    return [(start[0] + t * (end[0] - start[0]), start[1] + t * (end[1] - start[1])) for t in parts]


def _nearest(box: Bbox, at: Place) -> tuple[float, float]:
    return min(max(at[0], box.x0), box.x1), min(max(at[1], box.y0), box.y1)


def _box(start: Place, end: Place) -> Bbox:
    (x0, x1), (y0, y1) = sorted((start[0], end[0])), sorted((start[1], end[1]))
    return Bbox.from_extents(x0, y0, x1, y1)


def _sign(value: float) -> float:
    return 0.0 if abs(value) < 0.3 else math.copysign(1.0, value)


def _fits(box: Bbox, taken: Sequence[Bbox], inside: Bbox) -> bool:
    whole = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
    return whole and not any(box.overlaps(other) for other in taken)


def _lead(axes: Axes, style: Style, point: Named, at: Place, end: Place) -> None:
    """Draw a thin line from a far name to its point."""
    offset = ((end[0] - at[0]) * 72 / axes.figure.dpi, (end[1] - at[1]) * 72 / axes.figure.dpi)
    arrow = {
        "arrowstyle": "-",
        "lw": 0.35 * style.stroke,
        "color": shade(point.colour, 0.3),
        "shrinkA": 0,
        "shrinkB": 2,
    }
    line = axes.annotate("", (point.x, point.y), offset, textcoords="offset points", arrowprops=arrow, zorder=2)
    line.set_in_layout(False)


def _around(at: Place, radius: float) -> Bbox:
    return Bbox.from_bounds(at[0] - radius, at[1] - radius, 2 * radius, 2 * radius)


def _pixels(axes: Axes, place: Place) -> Place:
    x, y = axes.transData.transform(place)
    return float(x), float(y)


def _extent(text: object) -> Bbox:
    return text.get_window_extent()  # type: ignore[attr-defined,no-any-return]
