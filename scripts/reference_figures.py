"""Draws the figures of ``results/reference/`` again, from the rows and measurements that lie there.

    python -m scripts.reference_figures                                            # all of them
    python -m scripts.reference_figures fresh_weights/bar.png chart/chart.png      # some

After the code of a figure has changed; nothing is measured. ``benchmarks/timeline.png`` is not among them: it shows a
profile of tens of megabytes, which is not kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from analysis import drafts
from analysis.chart import __main__ as systems_chart
from analysis.predict import __main__ as prediction
from analysis.report import __main__ as report
from experiments.bench.traffic.codecs import chart
from experiments.bench.traffic.codecs.tables import by_encode
from experiments.bench.traffic.codecs.timing import Timing
from experiments.bench.traffic.codecs.variants import label
from experiments.links import bottleneck_chart

FOLDER = Path(__file__).resolve().parents[1] / "results/reference"
CALIBRATION = FOLDER / "links" / "calibration.json"
_RUN = "gpt2-mini-2-ranks-400-steps"
OUTER_RATES = {"chart": "outer_rates", "chart_8": "outer_rates_8"}
"""Rows that tried outer rates and momenta for a chart's arms, beside those that tried its learning rates."""
REPORTS: dict[str, tuple[str, str]] = {
    "fresh_weights/bar.png": ("fresh_weights/bar.jsonl", f"{_RUN}-quality_against_compression.png"),
    "fresh_weights/system.png": ("fresh_weights/bar.jsonl", "all-system.png"),
    "fresh_weights/pareto.png": ("fresh_weights/sweeps.jsonl", f"{_RUN}-quality_against_compression.png"),
    "fresh_weights/pareto_gradients.png": (
        "fresh_weights/sweeps.jsonl",
        f"{_RUN}-quality_against_gradient_compression.png",
    ),
    "fresh_weights/pareto_parameters.png": (
        "fresh_weights/sweeps.jsonl",
        f"{_RUN}-quality_against_parameter_compression.png",
    ),
    "links/time_to_quality.png": ("links/links.jsonl", f"{_RUN}-200-mbit-s-time_to_quality.png"),
    "links/user_model.png": ("links/user_model.jsonl", "gpt2-62m-2-ranks-13-steps-200-mbit-s-step_time.png"),
    "going_on/going_on.png": (
        "going_on/continued.jsonl",
        "fsdp-output-starts-gpt2-mini-44ffca47-2-ranks-100-steps-quality_against_compression.png",
    ),
    "fresh_weights/world_size.png": ("fresh_weights/world_size.jsonl", "along-world-sizes-1-world_sizes.png"),
}
"""Figures that a report draws: of which rows, and the report's name for it."""
NOT_DRAWN = ("benchmarks/timeline.png",)


def _steps(path: Path) -> None:
    matrix, machine = FOLDER / "links" / "link_matrix.jsonl", CALIBRATION
    words = ["--calibration", str(machine), "--measured", str(matrix), "--chart", str(path)]
    _run(prediction.main([*words, "--rate", "1gbit", "--model", "blocks"]), path)


def _bottleneck(path: Path) -> None:
    bottleneck_chart.draw(json.loads((FOLDER / "links" / "bottleneck.json").read_text())["cells"], path)


def _codecs(path: Path) -> None:
    record = json.loads((FOLDER / "benchmarks" / "codecs_cpu.json").read_text())
    names = Timing.__dataclass_fields__
    rows = [Timing(**{name: value for name, value in row.items() if name in names}) for row in record["rows"]]
    shown = [row for row in by_encode(rows) if row.threads == record["settings"]["threads"][0]]
    chart.draw([(label(row.method, row.config), row) for row in shown], path)


def _drafts(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(drafts.main([str(FOLDER / "drafts" / "drafts.jsonl"), "--out", folder]), path)
        shutil.copyfile(Path(folder) / path.name, path)


def _chart(path: Path) -> None:
    _draw_chart(
        "chart", path.name.removeprefix("chart_"), path, ["--times", str(FOLDER / "chart" / "chart_times.jsonl")]
    )


def _chart_of_bits(path: Path) -> None:
    _draw_chart(path.stem, "chart.png", path)  # without times


def _draw_chart(rows: str, figure: str, path: Path, further: Sequence[str] = ()) -> None:
    names = [rows, f"{rows}_rates", *([OUTER_RATES[rows]] if rows in OUTER_RATES else [])]
    judged, *tuning = (str(FOLDER / "chart" / f"{name}.jsonl") for name in names)
    with tempfile.TemporaryDirectory() as folder:
        words = [judged, "--tuning", *tuning, *further, "--out", folder, "--formats", "png"]
        _run(systems_chart.main(words), path)
        shutil.copyfile(Path(folder) / figure, path)


def _elsewhere(path: Path) -> None:
    rows = [str(FOLDER / "going_on" / name) for name in ("continued.jsonl", "elsewhere.jsonl")]
    with tempfile.TemporaryDirectory() as folder:
        _run(report.main([*rows, "--select", "seed=1,2,3", "--tuned", "--out", folder, "--formats", "png"]), path)
        shutil.copyfile(Path(folder) / "across-settings-1-settings.png", path)


OTHERS = {
    "going_on/elsewhere.png": _elsewhere,
    "chart/chart.png": _chart,
    "chart/chart_times.png": _chart,
    "chart/chart_8.png": _chart_of_bits,
    "chart/chart_llama.png": _chart_of_bits,
    "chart/combinations.png": _chart_of_bits,
    "links/step_against_bandwidth.png": _steps,
    "links/bottleneck.png": _bottleneck,
    "benchmarks/codecs_cpu.png": _codecs,
    "drafts/tau_against_bytes.png": _drafts,
}
"""Figures that other commands draw."""


def main(arguments: Sequence[str]) -> int:
    """Draw the named figures, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("figure", nargs="*", help=f"of {', '.join([*REPORTS, *OTHERS])} (default: all)")
    wanted = parser.parse_args(arguments).figure or [*REPORTS, *OTHERS]
    for name in wanted:
        if name not in REPORTS and name not in OTHERS:
            parser.error(f"figure: {name} is not one that can be drawn again")
    for rows in dict.fromkeys(REPORTS[name][0] for name in wanted if name in REPORTS):
        with tempfile.TemporaryDirectory() as folder:
            words = [str(FOLDER / rows), "--calibration", str(CALIBRATION), "--out", folder, "--formats", "png"]
            _run(report.main(words), FOLDER / rows)
            for name in wanted:
                if REPORTS.get(name, ("", ""))[0] == rows:
                    shutil.copyfile(Path(folder) / REPORTS[name][1], FOLDER / name)
    for name in wanted:
        if name in OTHERS:
            OTHERS[name](FOLDER / name)
    return 0


def _run(code: int, what: Path) -> None:
    if code:
        raise SystemExit(f"{what}: not drawn (exit code {code})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
