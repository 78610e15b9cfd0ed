"""What is sent: bits a parameter and step, by direction and by what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from analysis.figures.drawing import bars
from analysis.figures.drawing.data import Datum, arms, of_quantity
from analysis.figures.drawing.style import Style
from analysis.rows.comparing.comparisons import Comparison
from analysis.rows.reading import is_number
from analysis.statistics.measures import Measure, bits_per_parameter

KINDS = ("value", "index", "metadata")
GRADIENTS = bars.Part("reduce-scatter (gradients)", "#0072B2")
PARAMETERS = bars.Part("all-gather (parameters)", "#E69F00", "////")
REPLICAS = bars.Part("all-reduce (replicas)", "#009E73")
ACTIVATIONS = bars.Part("activations", "#CC79A7")
ACTIVATION_GRADIENTS = bars.Part("gradients of activations", "#882255", "////")
OUTER = bars.Part("synchronisations after local steps", "#661100")
OPTIMIZER = bars.Part("gathers of the optimizer", "#999933", "////")
OPERATIONS = {
    "reduce_scatter": GRADIENTS,
    "all_gather": PARAMETERS,
    "all_reduce": REPLICAS,
    "activations": ACTIVATIONS,
    "activation_gradients": ACTIVATION_GRADIENTS,
    "outer": OUTER,
    "optimizer": OPTIMIZER,
}
UNCODED = bars.Part("uncoded", "#C4C4C4")
VALUES = bars.Part("values", "#56B4E9")
INDICES = bars.Part("indices", "#D55E00", "////")
METADATA = bars.Part("scales, lengths, padding", "#000000")
BITS = "bits a parameter and step"


def of_operation(name: str) -> Measure:
    """Bits a parameter and step of one operation."""
    return lambda row: bits_per_parameter(row, name)


def of_kind(kind: str) -> Measure:
    """Bits a parameter and step of values, indices or metadata; ``uncoded``: of collectives without a hook."""

    def measure(row: Mapping[str, Any]) -> float | None:
        bits, total = bits_per_parameter(row), row.get("bytes_compressed_total")
        if bits is None or not total:
            return bits
        known = {name: row.get(f"{name}_bytes") or 0 for name in KINDS}
        counted = total - sum(known.values()) if kind == "uncoded" else known[kind]
        return bits * counted / total if is_number(counted) else None

    return measure


MEASURES: dict[str, Measure] = {
    **{part.quantity: of_operation(name) for name, part in OPERATIONS.items()},
    UNCODED.quantity: of_kind("uncoded"),
    VALUES.quantity: of_kind("value"),
    INDICES.quantity: of_kind("index"),
    METADATA.quantity: of_kind("metadata"),
    BITS: bits_per_parameter,
}


def data(comparison: Comparison) -> list[Datum]:
    """The bits of all arms: the baselines first, then the fewest. ValueError when no rank sent anything."""
    return bars.data(comparison, MEASURES, BITS, "no run of two ranks or more has bytes_compressed_total")


def draw(bits: Sequence[Datum], style: Style, foot: str = "") -> Figure:
    """The figure. Left: bits by operation, with the sum. Right: the same bits by kind."""
    with style:
        figure, panels = bars.figure(style, len(arms(bits)), (1, 1), sharex=True)
        for axes, parts in zip(panels, (tuple(OPERATIONS.values()), (UNCODED, VALUES, INDICES, METADATA)), strict=True):
            present = [p for p in parts if any(one.value for one in of_quantity(bits, p.quantity).values())]
            bars.stacked(axes, style, bits, present)
            axes.set_xlabel(style.say(BITS))
            columns = 1 if style.columns == "single" else 2
            axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, columnspacing=1.0)
        for place, one in enumerate(of_quantity(bits, BITS).values()):
            at = (one.value, place)
            text = f"{one.value:.3g}"
            panels[0].annotate(text, at, (3, 0), textcoords="offset points", va="center_baseline", fontsize=style.small)
        if style.columns == "double":
            panels[1].set_yticks([])  # those of the left panel
        panels[0].set_xlim(right=1.12 * panels[0].get_xlim()[1])
        style.foot(figure, foot)
    return figure
