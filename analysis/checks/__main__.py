"""What is wrong with results rows and with the comparisons they make, before anyone plots them.

    python -m analysis.checks results/results.jsonl [--json FILE] [--select COLUMN=VALUE ...] [--baseline ARM]

prints one finding a line, what it rests on and what to do about it; exit code 1 when there is an error among them. A
check is a function from one row (`row_checks`) or one comparison (`comparing`) to its findings.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from analysis.checks.fairness import Judge
from analysis.checks.finding import Finding
from analysis.rows.reading import counted, parse_selection, read, select
from analysis.tables.options import add_options, comparisons_of
from fsdp_lab.settings.flag_values import new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import printable, unix_endings


def _plain(finding: Finding) -> dict[str, Any]:
    """The finding as JSON has it, with arms by their labels."""
    return asdict(replace(finding, arms=())) | {"arms": [arm.label for arm in finding.arms]}


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    parser = program("analysis.checks", __doc__)
    add_options(parser)
    parser.add_argument("--json", type=new_file(), metavar="FILE", help="write the findings there, too")
    options = parser.parse_args(argv)
    try:
        there = read(options.file)
        sound = [*there.rows, *there.drafts]
        if not sound:
            print("".join(f"{line}\n" for line in there.left_out), end="", file=sys.stderr)
            raise ValueError(f"{', '.join(map(str, options.file))} holds no sound row")
        rows = select(sound, **parse_selection(options.select))
        findings = Judge(rows).everything(*comparisons_of(options, rows))
        if options.json is not None:
            options.json.write_text(json.dumps([_plain(finding) for finding in findings], indent=1) + "\n")
    except (ValueError, OSError) as error:
        print(f"fairness: {printable(str(error))}", file=sys.stderr)
        return 2
    print("".join(f"left out: {line}\n" for line in there.left_out), end="", file=sys.stderr)
    for finding in findings:
        print(f"{finding.severity:8s}{printable(f'{finding.subject}: {finding.what}')}")
        print(f"{'':8s}{printable(finding.advice)} [{finding.check}]")
    left_out = f", {counted(len(there.left_out), 'line')} left out" if there.left_out else ""
    print(f"{counted(len(rows), 'row')}{left_out}, {counted(len(findings), 'finding')}")
    return int(any(finding.severity == "error" for finding in findings))


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
