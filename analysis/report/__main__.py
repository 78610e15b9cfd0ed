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

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.figures.drawing.style import FORMATS, Style, formats_of
from analysis.predict.calibration import Calibration, read_json
from analysis.predict.predictor import Predictor
from analysis.report import numbers
from analysis.report.contents import DRAWN_COMPARISONS, Subject, document
from analysis.report.drawn import Drawn
from analysis.report.entries import Machine
from analysis.report.language.chinese import table, translated
from analysis.report.pages import html, markdown
from analysis.rows.garbage import collector_disabled, objects_frozen
from analysis.rows.reading import is_draft, parse_selection, read, select
from analysis.statistics.names import named
from analysis.tables.options import add_options, comparisons_of
from fsdp_lab.settings.flag_values import a_file, new_folder, whole
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.user_errors import printable, unix_pipes, user_errors


def main(argv: Sequence[str]) -> int:
    """Read the rows, draw the figures, write the report."""
    options = _parser().parse_args(argv)
    with user_errors("report"):
        with collector_disabled():
            subject = _subject(options, argv)
        with objects_frozen():  # else every few figures all rows would be
            drawn = _drawn(subject, options)
    for line in subject.left_out:
        print(f"left out: {printable(line)}", file=sys.stderr)
    for name, reason in drawn.left_out:
        print(f"missing: {name}: {printable(reason)}", file=sys.stderr)
    lines = f", {len(subject.left_out)} lines left out" if subject.left_out else ""
    figures, compared = len(drawn.files) // len(drawn.formats), len(subject.comparisons) + len(subject.drafts)
    print(f"{len(subject.rows)} rows{lines}, {compared} comparisons, {figures} figures")
    print(options.out / "index.html")
    return 0


def _drawn(subject: Subject, options: argparse.Namespace) -> Drawn:
    """Draw the figures and write all files of the report."""
    formats = formats_of(options.formats)
    style = Style(options.medium, options.columns, options.language)
    style.parameters()  # a missing font is told now
    drawn = Drawn(options.out, style, formats)
    whole = translated(document(subject, drawn), options.language)
    tables = drawn.tables if options.language == "en" else list(map(table, drawn.tables))
    drawn.forget_earlier()
    shown = "svg" if "svg" in formats else formats[-1]
    _write(options.out / "index.html", html.render(whole, options.out, formats))
    _write(options.out / "report.md", markdown.render(whole, shown))
    _write(options.out / "table.md", "\n\n".join(table.markdown() for table in tables) + "\n")
    _write(options.out / "table.tex", "\n\n".join(table.latex() for table in tables) + "\n")
    _write(options.out / "data.csv", numbers.csv_text(drawn.data))
    return drawn


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


def _subject(options: argparse.Namespace, argv: Sequence[str]) -> Subject:
    result = read(options.file)
    sound = [*result.rows, *result.drafts]
    if not sound:
        first = f"; the first: {result.left_out[0]}" if result.left_out else ""
        raise ValueError(
            f"{', '.join(map(str, options.file))}: no sound row, {len(result.left_out)} lines left out{first}"
        )
    rows = select(sound, **parse_selection(options.select))
    drafts = [row for row in rows if is_draft(row)]
    language_models = [row for row in rows if not is_draft(row)]
    beside = options.file[0].parent / "calibration.json"
    file = options.calibration or (beside if beside.exists() else None)
    for flag in ("matrix", "calibrated_model"):
        if getattr(options, flag) is not None and file is None:
            raise ValueError(f"--{flag}: needs the machine's calibration, too; name it with --calibration")
    machines = _machines(file, options.matrix) if file else []
    models = list(dict.fromkeys(machine.model for machine in machines))
    if options.calibrated_model is not None and options.calibrated_model not in models:
        raise ValueError(
            f"--calibrated_model: {options.calibrated_model!r} is not in {file}; it has {', '.join(models)}"
        )
    compared, of_drafts = comparisons_of(options, language_models, drafts)
    return Subject(
        files=[str(path) for path in options.file],
        rows=rows,
        left_out=result.left_out,
        selection=options.select,
        comparisons=named(compared),
        drafts=named(of_drafts),
        machines=machines,
        machine_file=str(file),
        command=f"fsdp-lab report {shlex.join(_without_out(argv))} --out report",
        calibrated_model=options.calibrated_model,
        drawn_comparisons=options.drawn_comparisons,
    )


def _machines(file: Path, matrix: Path | None) -> list[Machine]:
    """Every model of the calibration, at every world size at which it was calibrated."""
    calibration = Calibration.load(file)
    cells = [] if matrix is None else read_json(matrix)
    return [
        Machine(Predictor(calibration, model, world), model, cells)
        for model in calibration.models
        for world in calibration.worlds(model)
    ]


def _without_out(argv: Sequence[str]) -> list[str]:
    """The words without ``--out``: what a report says does not depend on where it lies."""
    kept, skip = [], False
    for word in argv:
        if not skip and word != "--out" and not word.startswith("--out="):
            kept.append(word)
        skip = word == "--out"
    return kept


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise ValueError(f"--out: cannot write {path} ({error.strerror}); name another folder") from None


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
