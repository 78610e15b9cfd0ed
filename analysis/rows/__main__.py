"""Results rows as a pandas DataFrame, or as a CSV file: one line a run, one column a field.

    python -m analysis.rows results/results.jsonl --out rows.csv [--select COLUMN=VALUE ...]

writes the rows for a spreadsheet or another program (without ``--out``, to the terminal), and

    from analysis.rows.frames import frame
    runs = frame("results/results.jsonl", status="ok")
    runs.groupby(["config.model", "arm"])["val_ppl"].agg(["mean", "std", "count"])

gives them to a notebook. Fields that are objects become a column for each of their entries (``config.max_steps``,
``bytes_compressed_by_op.all_gather``). A method's settings, and what is an object or a list within those, are JSON
text, so that every cell is one value and rows can be grouped by it. ``arm`` is the label that reports use; ``file``
and ``line`` say where a row stood.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from analysis.rows.reading import parse_selection
from analysis.tables.options import add_selection
from fsdp_lab.settings.flag_values import new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import printable, unix_endings, user_errors


def main(argv: Sequence[str]) -> int:
    """Read the rows, make a table of them, write it."""
    parser = program("analysis.rows", __doc__)
    add_selection(parser)
    parser.add_argument("--out", type=new_file(), metavar="FILE.csv", help="file to write; default: standard output")
    options = parser.parse_args(argv)
    from analysis.rows.frames import frame  # with pandas, which --help need not wait for

    with user_errors("frames"):
        table = frame(options.file, **parse_selection(options.select))
        try:
            if options.out is None and sys.stdout.isatty():
                print(printable(table.to_csv(index=False), keep="\n"), end="")
            else:
                table.to_csv(options.out or sys.stdout, index=False)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise ValueError(f"--out: cannot write {options.out} ({error.strerror}); name another file") from None
    if options.out is not None:
        print(f"{options.out}: {len(table)} rows, {len(table.columns)} columns")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
