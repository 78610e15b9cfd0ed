"""A report from the flags of ``python -m analysis.report``: what it is about, its figures and its files."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from analysis.figures.drawing.formats import formats_of
from analysis.figures.drawing.style import Style
from analysis.predict.calibration import Calibration, read_json
from analysis.predict.predictor import Predictor
from analysis.report import numbers
from analysis.report.contents import Subject, document
from analysis.report.drawn import Drawn
from analysis.report.entries import Machine
from analysis.report.language.chinese import table, translated
from analysis.report.pages import html, markdown
from analysis.rows.reading import counted, is_draft, parse_selection, read, select
from analysis.statistics.names import named
from analysis.tables.options import comparisons_of


def subject_of(options: argparse.Namespace, argv: Sequence[str]) -> Subject:
    """What the flags ask about, with its rows. ``argv``: the command line. ValueError for what cannot be read."""
    result = read(options.file)
    sound = [*result.rows, *result.drafts]
    if not sound:
        first = f"; the first: {result.left_out[0]}" if result.left_out else ""
        lines = counted(len(result.left_out), "line")
        raise ValueError(f"{', '.join(map(str, options.file))}: no sound row, {lines} left out{first}")
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


def drawn_of(subject: Subject, options: argparse.Namespace) -> Drawn:
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
