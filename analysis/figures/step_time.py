"""Where each arm's step goes, and how many tokens a second that makes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.figures.drawing import bars
from analysis.figures.drawing.data import Datum, arms
from analysis.figures.drawing.style import Style
from analysis.rows.comparing.comparisons import Comparison
from analysis.statistics import timing
from analysis.statistics.measures import Measure, column

# the parts of a step: colours of their own, told apart by any eye, hatched where print is grey
REST = bars.Part("computation and the rest", "#D0D0D0")
WIRE = bars.Part("transfer and waiting", "#D55E00")
ENCODE = bars.Part("encoding", "#009E73", "////")
DECODE = bars.Part("decoding", "#56B4E9", "..")
STEP, SPEED = "step, ms", "tokens/s"
MEASURES: dict[str, Measure] = {
    REST.quantity: timing.rest_ms,
    WIRE.quantity: timing.wire_ms,
    ENCODE.quantity: timing.encode_ms,
    DECODE.quantity: timing.decode_ms,
    STEP: column("step_time_ms_mean"),
    SPEED: column("tokens_per_s"),
}


def data(comparison: Comparison) -> list[Datum]:
    """The times of all arms: the baselines first, then the fastest. ValueError when no run was timed."""
    return bars.data(comparison, MEASURES, STEP, "no run has step_time_ms_mean")


def draw(times: Sequence[Datum], style: Style, foot: str = "") -> Figure:
    """The figure. Left: the mean step in its parts, with the 95 % interval over seeds. Right: tokens/s, likewise."""
    with style:
        figure, (left, right) = bars.figure(style, len(arms(times)), (1.45, 1))
        bars.stacked(left, style, times, [REST, WIRE, ENCODE, DECODE], STEP)
        bars.stacked(right, style, times, [bars.Part(SPEED)], SPEED)
        if style.columns == "double":
            right.set_yticks([])  # those of the left panel
        for axes, label in ((left, STEP), (right, SPEED)):
            axes.xaxis.set_major_locator(MaxNLocator(5 if axes is left else 4))
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.set_xlabel(style.say(label))
        bars.legend(figure, left, style)
        style.foot(figure, foot)
    return figure
