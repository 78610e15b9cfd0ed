"""The figure of `experiments.links.bottleneck`: what share of a step is communication, and what a step is made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

# of Okabe and Ito, told apart with any colour vision
LINES = ["#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7"]
PARTS = [("computation", "#BBBBBB"), ("codec", "#009E73"), ("communication", "#D55E00")]
Cells = Sequence[dict[str, Any]]


def draw(cells: Cells, path: Path) -> None:
    """The figure. Left: the share of communication with `none` over ranks, a line for each link.

    Beside it, for each number of ranks, the parts of a step by link and method."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    several = sorted({cell["ranks"] for cell in cells if cell["ranks"] > 1})
    figure = Figure(figsize=(3.6 + 3.7 * len(several), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 1 + len(several), squeeze=False)[0]
    _shares(panels[0], cells)
    for axes in panels[2:]:
        axes.sharey(panels[1])  # steps are compared across panels
    for axes, ranks in zip(panels[1:], several, strict=True):
        _steps(axes, [cell for cell in cells if cell["ranks"] == ranks])
        axes.set_title(f"step with {ranks} ranks", fontsize=9)
    for axes in panels:
        axes.tick_params(labelsize=8)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    if several:
        panels[1].set_ylabel("ms", fontsize=8)
        panels[1].legend(fontsize=8, framealpha=1, loc="upper left")
    figure.savefig(path, dpi=160)


def _shares(axes: Any, cells: Cells) -> None:
    alone = [(cell["ranks"], cell["comm_share"]) for cell in cells if cell["ranks"] == 1]
    stock = [cell for cell in cells if cell["method"] == "none" and cell["ranks"] > 1]
    for colour, rate in zip(LINES, dict.fromkeys(cell["rate"] for cell in stock), strict=False):
        points = sorted(alone + [(cell["ranks"], cell["comm_share"]) for cell in stock if cell["rate"] == rate])
        axes.plot([p[0] for p in points], [100 * p[1] for p in points], "o-", color=colour)
        last = (points[-1][0], 100 * points[-1][1])
        axes.annotate(_link(rate), last, (0, 5), textcoords="offset points", ha="right", fontsize=8, color=colour)
    axes.set_xticks(sorted({cell["ranks"] for cell in cells}))
    axes.set_ylim(0, 100)
    axes.set_xlabel("ranks", fontsize=8)
    axes.set_ylabel("% of the step", fontsize=8)
    axes.set_title("communication without compression", fontsize=9)


def _steps(axes: Any, cells: Cells) -> None:
    methods, rates = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("method", "rate"))
    for cell in cells:
        place = rates.index(cell["rate"]) * (len(methods) + 1) + methods.index(cell["method"])
        parts = (cell["step_ms_mean"] - cell["codec_ms"] - cell["comm_ms"], cell["codec_ms"], cell["comm_ms"])
        bottom = 0.0
        for height, (name, colour) in zip(parts, PARTS, strict=True):
            axes.bar(place, max(height, 0), bottom=bottom, color=colour, label=name if cell is cells[0] else None)
            bottom += max(height, 0)
    ticks = [r * (len(methods) + 1) + m for r in range(len(rates)) for m in range(len(methods))]
    axes.set_xticks(ticks, methods * len(rates), rotation=90)
    for number, rate in enumerate(rates):
        middle = number * (len(methods) + 1) + (len(methods) - 1) / 2
        axes.annotate(
            _link(rate), (middle, 0), (0, -48), ("data", "axes fraction"), "offset points", ha="center", fontsize=8
        )


def _link(rate: str) -> str:
    return "no limit" if rate == "none" else rate.replace("gbit", " Gbit/s").replace("mbit", " Mbit/s")
