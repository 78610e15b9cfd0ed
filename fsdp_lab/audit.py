"""Who sends which bytes in any program: it runs as it is, and a table of all its collectives comes at its end.

    python -m fsdp_lab.audit -- torchrun --nproc-per-node 2 train.py --its_flags
    python -m fsdp_lab.audit --json bytes.json -- python train.py

The table has a line for each collective, group, dtype and caller, summed over the ranks, whoever calls it: FSDP2, DDP,
tensor parallelism, an optimizer. The program need not know comm_compress, but its Python must be able to import it,
with torch. It becomes slower, so time nothing meanwhile. The exit code is the program's own; 1 where that is 0 and no
rank was seen; 2 where nothing could be started. What is not seen: docs/comparing/audit.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import comm_compress as cc
from fsdp_lab.files.atomic import write_bytes
from fsdp_lab.ranks.exit_codes import FAILED
from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import Parser, as_typed, program
from fsdp_lab.settings.user_errors import printable, unix_endings, user_errors

LINES = 40


def main(argv: Sequence[str]) -> int:
    """Run the program after ``--``, print the table, and return the exit code."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    options = _parser().parse_args(words[:at])
    with user_errors("audit"):
        _check(words[at + 1 :])
        audit = cc.audit_program(words[at + 1 :])
    print(printable(audit.table(options.lines or None), keep="\n"), flush=True)
    if options.json is not None:
        try:
            write_bytes(options.json, json.dumps(audit.as_json(), indent=1).encode() + b"\n")
        except OSError as error:
            print(f"audit: cannot write {options.json} ({error.strerror}); the table above is all", file=sys.stderr)
            return audit.exit_code or FAILED
    return audit.exit_code or (0 if audit.ranks else FAILED)


def _parser() -> Parser:
    usage = "python -m fsdp_lab.audit [--json FILE] [--lines N] -- PROGRAM [WORD]..."
    parser = program("fsdp_lab.audit", __doc__, usage=usage, allow_abbrev=False)
    parser.add_argument("--json", type=new_file(), metavar="FILE", help="write sums and every rank's own counts there")
    parser.add_argument(
        "--lines",
        type=whole(0),
        default=LINES,
        metavar="N",
        help=f"lines of the table at most, 0: all (default: {LINES})",
    )
    return parser


def _check(command: Sequence[str]) -> None:
    """ValueError for what is wrong before anything is started."""
    if not command:
        example = as_typed("python -m fsdp_lab.audit -- torchrun --nproc-per-node 2 train.py")
        raise ValueError(f"no program; put it after --, for example: {example}")


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
