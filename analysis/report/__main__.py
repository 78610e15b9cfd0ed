"""All figures and tables of results rows, with what speaks against them first.

    python -m analysis.report results/results.jsonl [MORE.jsonl ...] --out report/ [--select COLUMN=VALUE ...]
        [--baseline none] [--language zh] [--for slides] [--columns single] [--formats svg,pdf,png]
        [--calibration CALIBRATION.json] [--calibrated_model default] [--matrix MATRIX.jsonl]

writes ``index.html`` (one page, readable without a network), ``report.md``, ``data.csv`` (every number plotted),
``table.md``, ``table.tex`` and the figures. The same rows give the same bytes. A calibration (`links.calibrate`)
adds predictions; by default that beside the first results file, if there is one. ``--calibrated_model`` says which of
its models the rows trained, so that their time to quality behind any link can be predicted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.figures.drawing.formats import FORMATS
from analysis.rows.garbage import collector_disabled, objects_frozen
from analysis.rows.reading import counted
from analysis.tables.options import add_options
from fsdp_lab.settings.flag_values import a_file, new_folder, whole
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.user_errors import printable, unix_endings, user_errors

DRAWN_COMPARISONS = 12


def main(argv: Sequence[str]) -> int:
    """Read the rows, draw the figures, write the report."""
    options = _parser().parse_args(argv)
    from analysis.report.making import drawn_of, subject_of  # figures, with matplotlib and pandas: not for --help

    with user_errors("report"):
        with collector_disabled():
            subject = subject_of(options, argv)
        with objects_frozen():  # else every few figures all rows would be
            drawn = drawn_of(subject, options)
    for line in subject.left_out:
        print(f"left out: {printable(line)}", file=sys.stderr)
    for name, reason in drawn.left_out:
        print(f"missing: {name}: {printable(reason)}", file=sys.stderr)
    lines = f", {counted(len(subject.left_out), 'line')} left out" if subject.left_out else ""
    figures, compared = len(drawn.files) // len(drawn.formats), len(subject.comparisons) + len(subject.drafts)
    counts = counted(compared, "comparison"), counted(figures, "figure")
    print(f"{counted(len(subject.rows), 'row')}{lines}, {', '.join(counts)}")
    print(options.out / "index.html")
    return 0


def _parser() -> Parser:
    parser = program("analysis.report", __doc__)
    add_options(parser)
    parser.add_argument("--out", type=new_folder, default=Path("report"), help="folder (default: report)")
    parser.add_argument("--language", choices=("en", "zh"), default="en", help="of the report and its figures")
    parser.add_argument(
        "--columns", choices=("single", "double"), default="double", help="width of figures: 3.3 or 7 in"
    )
    parser.add_argument("--for", dest="medium", choices=("print", "slides"), default="print", help="size of text")
    parser.add_argument("--formats", default=",".join(FORMATS), help=f"of figures (default: {','.join(FORMATS)})")
    drawn = parser.add_argument("--drawn_comparisons", type=whole(0), default=DRAWN_COMPARISONS, metavar="N")
    drawn.help = f"draw figures for the N largest comparisons (default: {DRAWN_COMPARISONS}); tables are of all"
    parser.add_argument("--calibration", type=a_file, help="of a machine, to predict with")
    parser.add_argument("--calibrated_model", metavar="MODEL", help="of the calibration: the one that the rows trained")
    parser.add_argument("--matrix", type=a_file, help="step times measured behind links (experiments.links.matrix)")
    return parser


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
