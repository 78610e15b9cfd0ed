"""The chart of `experiments.bench.traffic.codecs`: how near to memory speed each method comes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.bench.traffic.codecs.timing import ENCODE, FEEDBACK, ROUNDS_FEEDBACK, WORLDS, Timing, sum_of

# blue, orange and grey-green of Okabe and Ito, told apart with any colour vision
SERIES = [
    ("encode", "#0072B2", (ENCODE,)),
    ("with feedback", "#E69F00", (FEEDBACK, ROUNDS_FEEDBACK)),
    (f"decode and sum, {WORLDS[0]} ranks", "#009E73", (sum_of(WORLDS[0]),)),
]
LONGEST = 1.25  # bars of methods that move nothing end here, with their number
BAR = 0.26


def draw(rows: Sequence[tuple[str, Timing]], path: Path) -> None:
    """Horizontal bars by labelled method, in the order given; the line is a plain copy."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(label for label, _ in rows))
    figure = Figure(figsize=(6.4, 1.2 + 0.36 * len(labels)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for offset, (name, colour, operations) in enumerate(SERIES):
        shares = {label: row.roofline or 0.0 for label, row in rows if row.operation in operations}
        places = [i + (offset - 1) * BAR for i, label in enumerate(labels) if label in shares]
        values = [shares[label] for label in labels if label in shares]
        axes.barh(places, [min(v, LONGEST) for v in values], height=BAR, color=colour, label=name)
        for place, value in zip(places, values, strict=True):
            if value > LONGEST:
                axes.text(
                    LONGEST - 0.02, place, f"{value:.0f} \u2192", va="center", ha="right", fontsize=6, color="white"
                )
    axes.axvline(1, color="black", linewidth=1, linestyle="--")
    axes.text(1, 1.005, "memcpy", transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, LONGEST)
    axes.tick_params(axis="x", labelsize=8)
    is_cut = any((row.roofline or 0.0) > LONGEST for _, row in rows)
    cut = "\na bar with an arrow goes on to its number: the method moves next to nothing" if is_cut else ""
    axes.set_xlabel(f"fraction of the roofline: least bytes at a copy's rate, over the time{cut}", fontsize=8)
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="lower right", framealpha=1)
    figure.savefig(path, dpi=160)
