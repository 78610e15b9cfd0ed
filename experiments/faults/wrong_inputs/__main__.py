"""Wrong inputs to our commands: the message that answers each, and whether it keeps what is promised of it.

    python -m experiments.faults.wrong_inputs --out results/reference/faults/wrong_inputs.md
    python -m experiments.faults.wrong_inputs --commands train claim         # those alone, printed

All commands run in this process, one after the other, and none starts anything: some ten seconds, most of which torch
takes to be imported. (`fsdp-lab eagle train`, which changes its process for good, is not among them: its settings are
read as those of `fsdp-lab train` are.) The exit code is 1 when a promise was broken.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.faults.wrong_inputs import inspection, rows, training
from experiments.faults.wrong_inputs.case import Case, table
from experiments.faults.wrong_inputs.in_process import tried
from fsdp_lab.files.atomic import write_bytes
from fsdp_lab.settings.flag_values import new_file
from fsdp_lab.settings.flags import as_typed, program
from fsdp_lab.settings.user_errors import unix_endings

CASES: tuple[Case, ...] = (*training.CASES, *rows.CASES, *inspection.CASES)


def main(argv: Sequence[str]) -> int:
    """Try the cases, print or write the table; returns 1 when a promise was broken."""
    parser = program("experiments.faults.wrong_inputs", __doc__)
    parser.add_argument("--out", type=new_file(".md"), help="Markdown file to write; none: print")
    known = tuple(dict.fromkeys(case.command for case in CASES))
    parser.add_argument("--commands", nargs="+", default=known, choices=known, metavar="WORDS", help="only these")
    options = parser.parse_args(argv)
    made_by = as_typed("python -m experiments.faults.wrong_inputs")
    seen = [tried(case) for case in CASES if case.command in options.commands]
    text = table(seen, made_by)
    if options.out is None:
        print(text, end="")
    else:
        write_bytes(options.out, text.encode())
    return int(any(one.broken for one in seen))


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
