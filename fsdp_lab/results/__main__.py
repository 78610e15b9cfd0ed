"""Files of results on the command line.

python -m fsdp_lab.results check FILE      # exit code 0, or 2 with the number of every bad line
python -m fsdp_lab.results show FILE       # the main columns as a table
python -m fsdp_lab.results fields          # the schema as a Markdown table
python -m fsdp_lab.results migrate FILE --out NEW    # rows of earlier schema versions as this one has them
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fsdp_lab.results.scaling import scaling_efficiency
from fsdp_lab.results.schema import SECTIONS
from fsdp_lab.results.store import load, scan
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import printable, unix_endings, user_errors

_COLUMNS = {  # heading -> (field, format)
    "run": ("run_name", "s"),
    "status": ("status", "s"),
    "method": ("compress_method", "s"),
    "ranks": ("world_size", "d"),
    "step ms": ("step_time_ms_p50", ".1f"),
    "tokens/s": ("tokens_per_s", ".0f"),
    "scaling": ("scaling_efficiency", ".2f"),
    "comm share": ("comm_ratio", ".2f"),
    "sent MB": ("bytes_compressed_total", "MB"),
    "raw/sent": ("compression_ratio", ".2f"),
    "val loss": ("val_loss", ".4f"),
    "val PPL": ("val_ppl", ".3f"),
}


def check(path: str) -> int:
    """Prints every bad line of the file; returns 0 when there is none, else 2."""
    lines = list(scan(path))
    bad = [(number, complaint) for number, _, complaints in lines for complaint in complaints]
    for number, complaint in bad:
        print(f"{path}, line {number}: {printable(complaint)}", file=sys.stderr)
    sound = [row for _, row, _ in lines if row is not None]
    older = sum(row.get("migrated_from") is not None for row in sound)
    note = f"; {older} of an earlier schema version, migrated when read" if older else ""
    print(f"{path}: {len(sound)} of {len(lines)} rows are sound{note}")
    return 2 if bad else 0


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The main columns of the rows as aligned text, one line for each row; ``-`` stands for null.

    No row holds ``scaling``: it is computed from the one-rank rows of the same file (`results.scaling`).
    """
    shown = [{**r, "scaling_efficiency": e} for r, e in zip(rows, scaling_efficiency(rows), strict=True)]
    cells = [[_cell(row.get(field), form) for field, form in _COLUMNS.values()] for row in shown]
    lines = [list(_COLUMNS), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    left = [form == "s" for _, form in _COLUMNS.values()]
    return "\n".join(_line(line, widths, left) for line in lines)


def migrated(path: str, out: str) -> int:
    """Writes the sound rows of ``path``, all in the present schema version, to ``out``; returns 0, or 2 if any is bad.

    Loss curves stay where they are. ValueError when ``out`` exists (nothing is overwritten) or cannot be written.
    """
    lines = list(scan(path))
    rows = [row for _, row, _ in lines if row is not None]
    for row in rows:
        if row["loss_curve"] is not None:  # a path that is seen from the folder of the results file
            row["loss_curve"] = os.path.relpath(Path(path).parent / row["loss_curve"], Path(out).parent)
    try:
        with open(out, "x") as file:
            file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    except FileExistsError:
        raise ValueError(f"{out} exists already; name another file with --out") from None
    except OSError as error:
        raise ValueError(f"cannot write {out} ({error.strerror})") from None
    older = sum(row.get("migrated_from") is not None for row in rows)
    print(f"{out}: {len(rows)} rows, {older} of them migrated")
    for number, _, complaints in lines:
        if complaints:
            print(f"{path}, line {number} left out: {printable('; '.join(complaints))}", file=sys.stderr)
    return 2 if len(rows) < len(lines) else 0


def fields() -> str:
    """The schema in Markdown, a table for each section."""
    lines: list[str] = []
    for section, table in SECTIONS.items():
        lines += ["", f"## {section}", "", "| field | type | unit | meaning | required |", "|---|---|---|---|---|"]
        lines += (f"| `{f.name}` | {f.type_words} | {f.unit} | {f.meaning} | {f.required_words} |" for f in table)
    return "\n".join(lines[1:])


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "-"
    return f"{value / 1e6:.2f}" if form == "MB" else printable(format(value, form))


def _line(cells: Sequence[str], widths: Sequence[int], left: Sequence[bool]) -> str:
    padded = [c.ljust(w) if ll else c.rjust(w) for c, w, ll in zip(cells, widths, left, strict=True)]
    return "  ".join(padded).rstrip()


def main(argv: Sequence[str]) -> int:
    """Runs one command; returns the exit code."""
    parser = program("fsdp_lab.results", __doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="validate every line").add_argument("file")
    commands.add_parser("show", help="print the main columns").add_argument("file")
    commands.add_parser("fields", help="print the schema")
    migration = commands.add_parser("migrate", help="rewrite rows of earlier schema versions")
    migration.add_argument("file")
    migration.add_argument("--out", required=True, help="file to write; must not exist")
    given = parser.parse_args(argv)
    with user_errors("results"):
        if given.command == "migrate":
            return migrated(given.file, given.out)
        if given.command == "check":
            return check(given.file)
        print(table(load(given.file)) if given.command == "show" else fields())
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
