"""The share of a step that communication takes, with and without the codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from analysis.figures.drawing import bars
from analysis.figures.drawing.data import Datum, arms
from analysis.figures.drawing.style import Style
from analysis.figures.step_time import ENCODE, WIRE
from analysis.rows.comparing.comparisons import Comparison
from analysis.statistics import timing
from analysis.statistics.measures import Measure, column

CODEC = bars.Part("encoding and decoding", ENCODE.colour, ENCODE.hatch)
SHARE = "share of the step, %"


def wire_percent(row: Mapping[str, Any]) -> float | None:
    """Transfer and waiting, % of the step."""
    share = column("comm_ratio")(row)
    return None if share is None else 100 * share


def codec_percent(row: Mapping[str, Any]) -> float | None:
    """Encoding and decoding, % of the step."""
    share = timing.codec_share(row)
    return None if share is None else 100 * share


def percent(row: Mapping[str, Any]) -> float | None:
    """Transfer, waiting, encoding and decoding, % of the step."""
    wire, codec = wire_percent(row), codec_percent(row)
    return None if wire is None or codec is None else wire + codec


MEASURES: dict[str, Measure] = {WIRE.quantity: wire_percent, CODEC.quantity: codec_percent, SHARE: percent}


def data(comparison: Comparison) -> list[Datum]:
    """The shares of all arms: the baselines first, then the smallest. ValueError when none is known."""
    return bars.data(comparison, MEASURES, SHARE, "no run has comm_ratio with the times of its codec")


def draw(shares: Sequence[Datum], style: Style, foot: str = "") -> Figure:
    """The figure: a bar for each arm, with the 95 % interval of the sum."""
    with style:
        figure, (axes,) = bars.figure(style, len(arms(shares)), (1,))
        bars.stacked(axes, style, shares, [WIRE, CODEC], SHARE)
        axes.set_xlabel(style.say(SHARE))
        bars.legend(figure, axes, style)
        style.foot(figure, foot)
    return figure
