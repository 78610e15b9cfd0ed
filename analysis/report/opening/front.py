"""The first figure: perplexity against bits, every arm with its verdict, as SVG that a page's script can work on.

It is drawn twice, for a screen and for a phone, since a drawing that is only made smaller cannot be read there. Without
a script it shows the same marks; pointing at one then shows its title.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analysis.figures.drawing.palette import look
from analysis.report.opening.answer import Answered, about
from analysis.report.opening.label_room import Place, Room
from analysis.report.opening.marks import mark
from analysis.statistics.answers import MARGIN, RATIO
from analysis.tables.markup import page as escape

FONT = 13  # px
_LINEAR = 2.0  # percent; logarithmic beyond
_LEFT, _RIGHT, _TOP, _BAND, _BOTTOM = 62, 14, 10, 30, 46  # px
_Y_TICKS = (0.0, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000, 10_000)
_GREEN, _GREY, _FIELD = "#2E7D5B", "#5F5F5F", "#DCEFE6"
Say = Callable[[str], str]
BEST = ("holds", "front")  # statuses that are drawn filled and named in bold


@dataclass(frozen=True)
class Axis:
    """What quality is drawn against: the less of it the better. ``cost``: of an arm; None: not known."""

    label: str
    cost: Callable[[Answered], float | None]


BITS = Axis("bits a parameter and step", lambda one: one.line.bits)


@dataclass(frozen=True)
class Frame:
    """Where costs and percentages are on a sheet of ``width`` times ``height`` px. ``low`` to ``high`` are scaled."""

    axis: Axis
    width: int
    height: int
    least: float
    most: float
    low: float
    high: float
    band: int  # px at the top for arms that lost runs

    def x(self, cost: float) -> float:
        """Pixels from the left; costs beyond the ends are drawn there."""
        cost = min(max(cost, self.least), self.most)
        share = math.log(cost / self.least) / math.log(self.most / self.least)
        return _LEFT + share * (self.width - _LEFT - _RIGHT)

    def of(self, one: Answered) -> Place:
        """Where an arm's mark is, in pixels."""
        return self.x(self.axis.cost(one) or 0.0), self.y(one.change)

    def y(self, percent: float) -> float:
        """Pixels from the top; a lost run is in the band."""
        if math.isinf(percent):
            return _TOP + _BAND / 2
        share = (min(max(_scaled(percent), self.low), self.high) - self.low) / (self.high - self.low)
        return self.bottom - share * (self.bottom - _TOP - self.band)

    @property
    def bottom(self) -> int:
        """The lower edge of the plot, in px from the top."""
        return self.height - _BOTTOM


def drawable(arms: Sequence[Answered], axis: Axis = BITS) -> list[Answered]:
    """The arms with a cost (bytes) and quality. ValueError when they are too few for a figure."""
    known = [one for one in arms if axis.cost(one) and (one.line.change is None or one.line.change.mean is not None)]
    if sum(math.isfinite(one.change) for one in known) < 2:
        raise ValueError(f"the front of quality against {axis.label} needs a baseline and another arm that have both")
    return known


def svg(
    arms: Sequence[Answered], width: int, height: int, baseline: str, say: Say, title: str, axis: Axis = BITS
) -> str:
    """The drawing of `drawable` arms. ``say`` translates its labels; ``title`` is read out."""
    frame = _frame(arms, width, height, axis)
    parts = [*_field(frame, arms, say), *_axes(frame, baseline, say), _steps(frame, arms)]
    order = sorted(arms, key=lambda one: (one.status in BEST, one.status == "baseline", one.status != "unfair"))
    parts += [_arm(frame, one, say) for one in order]
    parts += _names(frame, arms)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="group" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="{FONT}">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>{"".join(parts)}</svg>'
    )


def _scaled(percent: float) -> float:
    size = abs(percent)
    return percent if size <= _LINEAR else math.copysign(_LINEAR * (1 + math.log10(size / _LINEAR)), percent)


def _frame(arms: Sequence[Answered], width: int, height: int, axis: Axis) -> Frame:
    costs = sorted(axis.cost(one) or 0.0 for one in arms)
    least = costs[1] / 3 if len(costs) > 2 and costs[1] > 30 * costs[0] else costs[0]  # one must not squeeze all others
    changes = [one.change for one in arms if math.isfinite(one.change)]
    fair = [one for one in arms if one.status != "unfair" and math.isfinite(one.change)]
    ends = [100 * end for one in fair if (c := one.line.change) for end in (c.low, c.high) if end is not None]
    ends = [end for end in ends if abs(end) < 3 * max(abs(change) for change in [*changes, 2.0])]
    low, high = _scaled(min([*changes, *ends, -1.0])), _scaled(max([*changes, *ends, 2.0]))
    room = 0.05 * (high - low)
    band = _BAND if any(math.isinf(one.change) for one in arms) else 0
    return Frame(axis, width, height, least / 1.3, costs[-1] * 1.5, low - room, high + room, band)


def _field(frame: Frame, arms: Sequence[Answered], say: Say) -> list[str]:
    """The field of the bar, where all arms agree on what one bit less is worth: bits times ratio are one number."""
    products = [one.line.bits * one.line.ratio_fp32 for one in arms if one.line.bits and one.line.ratio_fp32]
    if frame.axis is not BITS or not products or max(products) > 1.02 * min(products):
        return []
    right, top = frame.x(max(products) / RATIO), frame.y(100 * MARGIN)
    text = say("{ratio:g}x or more, {change:g} % worse at most").format(ratio=RATIO, change=100 * MARGIN)
    high = frame.bottom - top
    return [
        f'<rect x="{_LEFT}" y="{top:.1f}" width="{right - _LEFT:.1f}" height="{high:.1f}" fill="{_FIELD}"/>',
        f'<text x="{_LEFT + 6}" y="{frame.bottom - 6}" fill="{_GREEN}">{escape(text)}</text>',
    ]


def _axes(frame: Frame, baseline: str, say: Say) -> list[str]:
    right, bottom = frame.width - _RIGHT, frame.bottom
    parts = []
    if frame.band:
        parts.append(f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{_BAND}" fill="#F1F1F1"/>')
        parts.append(_text(_LEFT - 6, _TOP + _BAND / 2 + 5, say("lost"), "end"))
    for tick in _thinned([*(-t for t in _Y_TICKS[:0:-1]), *_Y_TICKS], frame):
        y = frame.y(tick)
        colour = "#333" if tick == 0 else "#DDD"
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="{colour}" stroke-width="1"/>')
        parts.append(_text(_LEFT - 6, y + 4.5, f"{tick:+,g}" if tick else "0", "end"))
    last = -math.inf
    for tick in (m * 10.0**e for e in range(-6, 8) for m in (1, 2, 5)):
        if frame.least <= tick <= frame.most and frame.x(tick) - last > 44:
            last = frame.x(tick)
            parts.append(f'<path d="M{last:.1f} {bottom}v5" stroke="#333"/>')
            parts.append(_text(last, bottom + 18, f"{tick:g}" if tick < 1000 else f"{tick:,.0f}", "middle"))
    parts.append(f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#333"/>')
    parts.append(_text((_LEFT + right) / 2, bottom + 38, say(frame.axis.label), "middle"))
    middle = (_TOP + bottom) / 2
    label = say("PPL against {baseline}, %").format(baseline=baseline)
    parts.append(_text(13, middle, label, "middle", f' transform="rotate(-90 13 {middle:.0f})"'))
    return parts


def _thinned(ticks: Sequence[float], frame: Frame) -> list[float]:
    """The ticks within the plot that have room for their texts; 0 and the margin come first."""
    kept: list[float] = []
    for tick in sorted(ticks, key=lambda t: (t != 0, t != 100 * MARGIN, abs(t))):
        inside = frame.low <= _scaled(tick) <= frame.high
        if inside and all(abs(frame.y(tick) - frame.y(other)) > 1.3 * FONT for other in kept):
            kept.append(tick)
    return kept


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333"{more}>{escape(text)}</text>'


def _steps(frame: Frame, arms: Sequence[Answered]) -> str:
    corners = _stairs(frame, arms)
    if not corners:
        return ""
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
    return f'<path d="{path}" fill="none" stroke="{_GREY}" stroke-width="1.2"/>'


def _stairs(frame: Frame, arms: Sequence[Answered]) -> list[Place]:
    """The corners of the front of the means of arms that are compared fairly.

    No other arm is better than one of the front in both cost and quality.
    """
    fair = [one for one in arms if one.status not in ("unfair", "failed") and math.isfinite(one.change)]
    corners: list[Place] = []
    best = math.inf
    for one in sorted(fair, key=lambda one: (frame.axis.cost(one) or 0.0, one.change)):
        if one.change < best:
            best, (x, y) = one.change, frame.of(one)
            corners += [(x, corners[-1][1])] if corners else []
            corners.append((x, y))
    return corners


def _arm(frame: Frame, one: Answered, say: Say) -> str:
    family, text = one.line.runs.arm.family, escape("; ".join(map(say, about(one))))
    seen, (x, y) = look(family), frame.of(one)
    bar = ""
    if (ends := _interval(frame, one)) is not None:
        path = f"M{x:.1f} {ends[0][1]:.1f}V{ends[1][1]:.1f}"
        bar = f'<path d="{path}" stroke="{seen.colour}" stroke-width="1.3" opacity="0.6"/>'
    is_filled = one.status in (*BEST, "baseline")
    drawn = mark(seen.marker, x, y, 7 if is_filled else 5.5)
    fill = seen.colour if is_filled else "#fff"
    faint = ' opacity="0.4"' if one.status == "unfair" else ""
    return (
        f'<g class="arm" tabindex="0" role="img" aria-label="{text}" data-family="{escape(family.split()[0])}" '
        f'data-status="{one.status}" data-x="{x:.1f}" data-y="{y:.1f}"{faint}><title>{text}</title>{bar}'
        f'<path d="{drawn}" fill="{fill}" stroke="{seen.colour}" stroke-width="1.6"/></g>'
    )


def _interval(frame: Frame, one: Answered) -> tuple[Place, Place] | None:
    """The two ends of an arm's interval; None where it has none, or none is drawn."""
    change, (x, _) = one.line.change, frame.of(one)
    if change is None or change.low is None or change.high is None or one.status == "unfair":
        return None
    return (x, frame.y(100 * change.low)), (x, frame.y(100 * change.high))


def _names(frame: Frame, arms: Sequence[Answered]) -> list[str]:
    """Names of the baseline and of the arms that hold the bar, or are on the front, or may be, where there is room."""
    spots = [frame.of(one) for one in arms]
    corners, zero = _stairs(frame, arms), frame.y(0.0)
    lines = [*itertools.pairwise(corners), *filter(None, (_interval(frame, one) for one in arms))]
    lines.append(((_LEFT, zero), (frame.width - _RIGHT, zero)))
    room = Room((_LEFT, _TOP, frame.width - _RIGHT, frame.bottom - 20), spots, lines)
    order = ("baseline", *BEST, "wide", "undecided", "perhaps")
    named = sorted((one for one in arms if one.status in order), key=lambda one: order.index(one.status))
    parts = []
    for one in named:
        corner = room.take(frame.of(one), 0.56 * FONT * len(one.label), FONT)
        if corner is not None:
            weight = ' font-weight="600"' if one.status in BEST else ""
            over_lines = ' paint-order="stroke" stroke="#fff" stroke-width="3"'
            parts.append(_text(corner[0], corner[1], one.label, "start", weight + over_lines))
    return parts
