"""What this machine has, and what of this project works on it: every line is ok, or missing with how to get it.

    python -m fsdp_lab.commands.doctor            # some seconds, most of which torch takes to be imported
    python -m fsdp_lab.commands.doctor --fast     # what can be said without torch, at once
    python -m fsdp_lab.commands.doctor --json     # the same for programs, for example in a bug report

Exit code 0, unless training cannot work here (1). Nothing is installed and nothing is left behind.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from fsdp_lab.commands.machine import hardware as machine, project as working
from fsdp_lab.commands.machine.finding import Finding
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings


def main(argv: Sequence[str]) -> int:
    """Print what is found as it is found; returns the exit code."""
    parser = program("fsdp_lab.commands.doctor", __doc__)
    parser.add_argument("--fast", action="store_true", help="leave out what needs torch")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    everything: dict[str, list[Finding]] = {}
    for title, findings in _sections(options.fast):
        everything[title] = []
        if not options.json:
            print(f"{title}:" if len(everything) == 1 else f"\n{title}:", flush=True)
        for finding in findings:
            everything[title].append(finding)
            if not options.json:
                print(as_text(finding), flush=True)
    if options.json:
        print(json.dumps({title: [asdict(f) for f in some] for title, some in everything.items()}, indent=1))
    stops = [finding.name for some in everything.values() for finding in some if finding.stops_training]
    if stops and not options.json:
        print(f"\nTraining cannot work here: {', '.join(stops)}.")
    return 1 if stops else 0


def as_text(finding: Finding) -> str:
    """One line, and a second one with the remedy."""
    state = "ok" if finding.ok else "missing"
    remedy = f"\n{'':30}{finding.remedy}" if finding.remedy else ""
    return f"  {state:8} {finding.name:18} {finding.said}{remedy}"


def _sections(fast: bool) -> Iterator[tuple[str, Iterator[Finding]]]:
    yield "This machine", machine.findings()
    yield "This project", working.findings()
    if not fast:
        yield "With torch", working.findings_with_torch()


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
