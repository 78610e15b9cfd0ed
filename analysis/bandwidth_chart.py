"""Step time against bandwidth: a line for each method's prediction, and measured cells as points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from analysis.predict import Predictor

MBIT = (50, 20_000)
TICKS = (1e8, 2e8, 1e9, 1e10)
_POINTS = 120


def draw(predictor: Predictor, model: str, measured: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a PNG. Of ``measured``, the cells of this model and world size are shown."""
    from analysis.predict import parse_rate, show_rate

    figure, axes = plt.subplots(figsize=(9, 5.4), layout="constrained")
    rates = [MBIT[0] * (MBIT[1] / MBIT[0]) ** (i / _POINTS) for i in range(_POINTS + 1)]
    cells = [c for c in measured if c["model"] == model and c["ranks"] == predictor.world]
    colours = plt.get_cmap("tab10").colors  # type: ignore[attr-defined]
    slowest_link = 1e6 * MBIT[0]
    methods = sorted(predictor.calibration.methods, key=lambda m: -predictor.step_s(m, slowest_link))
    for i, method in enumerate(methods):
        colour = colours[i % len(colours)]
        times = [1e3 * predictor.step_s(method, rate * 1e6, _bucket(rate, bool(cells))) for rate in rates]
        axes.plot(rates, times, color=colour, lw=1.4, label=method.replace(" + ", " / "))
        points = [(parse_rate(c["rate"]), c["step_ms_p50"]) for c in cells if c["method"] == method]
        seen = [(rate / 1e6, time) for rate, time in points if rate]
        axes.plot([p[0] for p in seen], [p[1] for p in seen], "o", color=colour, ms=5, mec="white", mew=0.6)
    axes.set(xscale="log", yscale="log", xlabel="a rank's bandwidth", ylabel="step, ms")
    axes.set_xticks([r / 1e6 for r in TICKS], [show_rate(r) for r in TICKS])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(
        f"{model}, {predictor.world} ranks: predicted (lines)" + (" and measured (points)" if cells else ""),
        loc="left",
        fontsize=11,
    )
    axes.grid(alpha=0.25, which="both", lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="gradients / parameters", fontsize=8, title_fontsize=8, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bucket(mbit: float, shaped: bool) -> float:
    """The emulated link's bucket, when emulated links are what is compared with."""
    return max(mbit * 1e6 / 8 * 5e-3, 1 << 16) if shaped else 0.0
