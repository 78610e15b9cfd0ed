"""Which method is fastest behind a link, from a calibration of the machine: predictions, and how good they are.

    python -m analysis.predict --rate 1gbit --world_size 4 [--model blocks] [--calibration FILE] [--json FILE]
        [--chart FILE.svg] [--measured MATRIX.jsonl] [--own_cores]
    python -m analysis.predict --check MATRIX.jsonl [--calibration FILE]
    python -m analysis.predict --check_rows ROWS.jsonl [--calibration FILE]

The first ranks the calibrated methods by their predicted step time and gives each one's **break-even** bandwidths:
below them it is faster than `none` (stock FSDP2) or than bf16 in both directions. The chart shows step time against
bandwidth, with the measured points of a matrix (`experiments.links.matrix`) on it. The second compares predictions
with a matrix's cells. What the model assumes is in `analysis/predict/step_model.py`; where its numbers come from in
`analysis/predict/calibration.py`. The third takes results rows, and compares the median step of every run behind a link
with what is predicted for it from the row of the same run without a limit (`analysis/predict/behind.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.predict.calibration import NONE, Calibration, read_json
from analysis.predict.checked_rows import checked
from analysis.predict.predictor import CALIBRATION, Predictor, check, check_table, parse_rate, table
from analysis.rows.reading import read_for_user
from fsdp_lab.settings.flag_values import a_file, new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors


def _draw(predictor: Predictor, model: str, cells: Sequence[dict[str, Any]], path: Path) -> None:
    from analysis.figures import bandwidth
    from analysis.figures.drawing import style  # matplotlib takes a second

    series = bandwidth.of_calibration(predictor, model, cells)
    title = f"{model}, {predictor.world} ranks: predicted (lines)"
    title += " and measured (points)" if any(one.measured for one in series) else ""
    figure = bandwidth.draw(series, style.Style(), title)
    style.save(figure, path.parent, path.stem, [path.suffix.removeprefix(".") or "png"])


def main(argv: Sequence[str]) -> int:
    """Run ``fsdp-lab predict``; returns the exit code."""
    parser = program("analysis.predict", __doc__)
    parser.add_argument("--rate", default="1gbit", help="what a rank may send: 200mbit, 1gbit, none")
    parser.add_argument("--world_size", type=whole(2), default=2)
    parser.add_argument("--model", default="blocks", help="one of the calibration's models")
    parser.add_argument("--calibration", type=a_file, default=CALIBRATION)
    parser.add_argument(
        "--own_cores", action="store_true", help="each rank on a machine of its own, with all its cores"
    )
    parser.add_argument(
        "--chart",
        type=new_file(".svg", ".pdf", ".png"),
        help="picture of step time against bandwidth: .svg, .pdf or .png",
    )
    parser.add_argument("--measured", type=a_file, help="matrix whose cells the chart shows as points")
    parser.add_argument("--json", type=new_file(), help="write the ranking there, too")
    parser.add_argument("--check", type=a_file, metavar="MATRIX", help="compare with measured cells instead")
    rows = parser.add_argument("--check_rows", type=a_file, metavar="ROWS")
    rows.help = "compare with rows of runs behind links instead"
    options = parser.parse_args(argv)
    with user_errors("predict"):
        calibration = Calibration.load(options.calibration, shared=not options.own_cores)
        if options.check is not None:
            print(check_table(check(calibration, read_json(options.check))))
            return 0
        if options.check_rows is not None:
            print(check_table(checked(read_for_user([options.check_rows]), calibration)))
            return 0
        rate = parse_rate(options.rate)
        predictor = Predictor(calibration, options.model, options.world_size)
        ranked = predictor.ranked(rate)
        base = next((p.step_s for p in ranked if p.method == NONE), None)
        cores = "a machine each" if options.own_cores else f"{calibration.cores} cores shared"
        print(f"predicted: {options.model}, {options.world_size} ranks, {options.rate}, {cores}\n")
        print(table(ranked, base))
        if options.json is not None:
            options.json.write_text(json.dumps([p.row() for p in ranked], indent=1) + "\n")
        if options.chart is not None:
            _draw(predictor, options.model, read_json(options.measured) if options.measured else [], options.chart)
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
