"""What compressed training costs a draft: acceptance length against bytes, as a table and a figure.

    python -m analysis.drafts FILE... [--out FOLDER] [--markdown | --latex] [--select COLUMN=VALUE ...] [--baseline ARM]

prints a table for each comparison of drafts in the files; --out writes them to FOLDER/drafts.md and a figure for each.
**Bits** are those a parameter and step; ratios name their denominator and are of all traffic. **tau**, tokens a pass of
the target on held-out questions, is the mean over seeds with half its 95 % interval, **change** that of tau against the
baseline seed by seed, with its 95 % interval. A run that failed or is missing is infinitely bad.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.checks.fairness import Judge, verdict
from analysis.checks.finding import QUALITY_AND_BYTES, Finding
from analysis.rows.comparing.comparisons import Comparison, titles
from analysis.statistics.acceptance import lines
from analysis.statistics.names import named
from analysis.tables.changes import change_text, summary_text
from analysis.tables.formats import Table
from analysis.tables.options import add_options, comparisons_of, rows_of
from fsdp_lab.settings.flag_values import new_folder
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import printable, unix_endings, user_errors

HEADS = (
    "arm",
    "bits, gradients",
    "bits, parameters",
    "bits, all",
    "all, fp32",
    "all, bf16",
    "tau",
    "change",
    "seeds",
    "failed",
)


def acceptance_table(comparison: Comparison, findings: Sequence[Finding], title: str | None = None) -> Table:
    """Every arm's numbers, the baseline first, then by falling bits; the fairness verdict below.

    ``findings`` are what speaks against the comparison (`fairness.Judge`). ``title`` is by default the setting's label.
    """
    rows = [
        [
            line.label,
            *(_number(bits, "") for bits in (line.bits_gradients, line.bits_parameters, line.bits)),
            *(_number(ratio, "x") for ratio in (line.ratio_fp32, line.ratio_bf16)),
            summary_text(line.tau, digits=3),
            change_text(line.change, digits=3),
            str(len(line.runs.runs)),
            str(len(line.runs.failures) or "-"),
        ]
        for line in lines(comparison)
    ]
    against = f", against {comparison.baseline.arm.label}" if comparison.baseline else ""
    note = verdict(findings, comparison, QUALITY_AND_BYTES)
    return Table(f"{title or comparison.setting.label}{against}", HEADS, rows, note)


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def main(argv: Sequence[str]) -> int:
    """Read the rows, compare them, print the tables, draw the figures."""
    parser = program("analysis.drafts", __doc__)
    add_options(parser)
    parser.add_argument("--out", type=new_folder, metavar="FOLDER", help="write the tables and figures there")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--markdown", dest="form", action="store_const", const="markdown", default="text")
    formats.add_argument("--latex", dest="form", action="store_const", const="latex", help="needs booktabs")
    options = parser.parse_args(argv)
    with user_errors("drafts"):
        rows = rows_of(options, drafts=True)
        comparisons, judge = named(comparisons_of(options, rows)[0]), Judge(rows)
        tables = [
            acceptance_table(c, judge.findings(c), title)
            for c, title in zip(comparisons, titles(comparisons), strict=True)
        ]
        print("\n\n".join(getattr(table, options.form)() for table in tables))
        if options.out is not None:
            _write(options.out, comparisons, tables)
    return 0


def _write(folder: Path, comparisons: Sequence[Comparison], tables: Sequence[Table]) -> None:
    """Write the tables into one file, and a figure for each comparison with at least two arms."""
    from analysis.figures import acceptance as figure  # these need matplotlib, tables do not
    from analysis.figures.drawing import style as styles

    written = []
    for number, (comparison, table) in enumerate(zip(comparisons, tables, strict=True), start=1):
        name = "tau_against_bytes" + f"_{number}" * (len(comparisons) > 1)
        try:
            points = figure.points(comparison)
        except ValueError as error:
            print(f"missing: {name}: {printable(str(error))}", file=sys.stderr)
            continue
        foot = f"{table.title}. {table.note}"
        written += styles.save(figure.draw(points, styles.Style(), foot), folder, name)
    page = folder / "drafts.md"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page.write_text("\n\n".join(table.markdown() for table in tables) + "\n")
    except OSError as error:
        raise ValueError(f"--out: cannot write {page} ({error.strerror}); name another folder") from None
    print("".join(f"\n{path}" for path in [page, *written]))


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
