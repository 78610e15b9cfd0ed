"""Everything that moves less, on one chart: methods, optimizers that communicate, local steps; bits against quality.

    python -m analysis.chart results/chart.jsonl --tuning results/chart_rates.jsonl --out chart/
        [--times results/chart_times.jsonl] [--select COLUMN=VALUE ...] [--margin 1] [--calibration CALIBRATION.json]
        [--formats svg,pdf,png]

An arm is how a run communicates and what moves its weights: methods, optimizer, local steps, copies of the weights. All
stand beside stock FSDP2 with AdamW, paired by seed. ``--tuning`` names the rows that chose each arm's learning rate, on
seeds of their own; a rate that was chosen on a seed that judges is refused. Writes ``index.html`` (one page, readable
without a network), ``chart`` and ``times`` (figures for a paper), and ``chart.json`` (every number). Times are
predicted from the rows and the link of a calibration (`fsdp-lab links calibrate`; by default the project's own);
``--times`` names rows that were made on a quiet machine, whose steps they start from instead of those of the judged
rows.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.chart.places import Chart, Place, chart
from analysis.chart.step_times import step_times
from analysis.figures.drawing.formats import FORMATS, formats_of
from analysis.predict.calibration import Calibration
from analysis.predict.predictor import CALIBRATION
from analysis.rows.reading import read_for_user
from analysis.statistics import names
from analysis.statistics.tuning import Tuning, judged, tuning
from analysis.tables.options import add_selection, rows_of
from analysis.tables.unknown_names import DEFAULT_BASELINE
from fsdp_lab.settings.flag_values import a_file, new_folder, real
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.user_errors import printable, unix_endings, user_errors


def main(argv: Sequence[str]) -> int:
    """Read the rows, place the arms, write page and figures."""
    options = _parser().parse_args(argv)
    from analysis.chart import page  # these need matplotlib, --help and wrong flags do not
    from analysis.figures.drawing.style import Style
    from analysis.report.pages import html

    with user_errors("chart"):
        rows = rows_of(options)
        tried = read_for_user(options.tuning) if options.tuning else []
        chosen = tuning(tried) if tried else None
        compared = judged(rows, chosen, options.baseline)
        times = step_times(read_for_user(options.times), compared) if options.times else None
        found = chart(compared, [*rows, *tried], _calibration(options.calibration), options.margin / 100, times)
        out: Path = options.out
        formats = formats_of(options.formats)
        _made(out)
        drawn, left_out = page.drawings(found, out, Style(options.medium, options.columns), formats)
        command = f"fsdp-lab chart {shlex.join(argv)}"
        whole = page.document(found, chosen, command, drawn)
        (out / "index.html").write_text(html.render(whole, out, formats))
        (out / "chart.json").write_text(json.dumps(numbers(found, chosen), indent=1) + "\n")
    for line in left_out:
        print(f"missing: {printable(line)}", file=sys.stderr)
    print("\n".join(map(printable, page.sentences(found))))
    print(out / "index.html")
    return 0


def _parser() -> Parser:
    parser = program("analysis.chart", __doc__)
    add_selection(parser)
    parser.add_argument("--baseline", default=DEFAULT_BASELINE, metavar="ARM", help="what all others are compared with")
    parser.add_argument(
        "--tuning", type=a_file, nargs="+", metavar="FILE", help="rows that chose each arm's learning rate"
    )
    parser.add_argument(
        "--times", type=a_file, nargs="+", metavar="FILE", help="rows of a quiet machine: what a step of each arm takes"
    )
    parser.add_argument(
        "--margin", type=real(above=0), default=1.0, metavar="PERCENT", help="of PPL that a time to quality allows"
    )
    parser.add_argument("--calibration", type=a_file, default=CALIBRATION, help="of a machine, for the links")
    parser.add_argument("--out", type=new_folder, default=Path("chart"), help="folder (default: chart)")
    parser.add_argument("--columns", choices=("single", "double"), default="double", help="width: 3.3 or 7 in")
    parser.add_argument("--for", dest="medium", choices=("print", "slides"), default="print", help="size of text")
    parser.add_argument("--formats", default=",".join(FORMATS), help=f"of figures (default: {','.join(FORMATS)})")
    return parser


def _calibration(path: Path) -> Calibration | None:
    """The calibration; None where the project's own is not there (an installed package has none)."""
    return Calibration.load(path) if path.exists() else None


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out: cannot make {folder} ({error.strerror}); name another folder") from None


def numbers(found: Chart, chosen: Tuning | None) -> dict[str, Any]:
    """Every number of the chart, as plain data: infinite ones (a lost run, a quality never reached) are null."""
    return {
        "setting": found.comparison.setting.label,
        "margin": found.margin,
        "tuning_seeds": [] if chosen is None else sorted(chosen.seeds),
        "arms": [_numbers(place) for place in found.places],
        "findings": [[one.severity, one.check, one.what] for one in found.findings],
    }


def _numbers(place: Place) -> dict[str, Any]:
    line, change = place.answered.line, place.answered.line.change
    return {
        "arm": place.answered.label,
        "settings": names.full(place.runs.arm),
        "status": place.answered.status,
        "beaten_by": line.beaten_by if place.answered.status == "beaten" else None,
        "beaten_everywhere": place.is_beaten_everywhere,
        "bits": line.bits,
        "bits_by_operation": dict(place.by_operation),
        "kept_bytes_a_parameter": place.kept,
        "change": None if change is None else _finite(change.mean),
        "low": None if change is None else change.low,
        "high": None if change is None else change.high,
        "pairs": len(line.runs.runs) if change is None else change.n,
        "seeds": sorted(line.runs.runs),
        "tuned": line.runs.tuned,
        "candidates": line.runs.candidates,
        "training_seconds": dict(place.seconds),
        "time_to_quality_seconds": {name: _finite(place.time_to_quality(name)) for name in place.seconds},
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
