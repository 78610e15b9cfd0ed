"""Published systems of compressed communication, or one of them: what it means here, and how to run it.

    python -m fsdp_lab.commands.systems              # all recipes with their bits, and what is not here
    python -m fsdp_lab.commands.systems sdp4bit      # its paper, its settings, what differs, what was published
    python -m fsdp_lab.commands.systems --json       # everything, for programs

A recipe's name is what ``--system`` of the trainer takes.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict

from fsdp_lab.commands.reference.system_pages import as_list, as_page
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.systems import table
from fsdp_lab.settings.systems.missing import MISSING
from fsdp_lab.settings.user_errors import unix_endings, user_errors


def main(argv: Sequence[str]) -> int:
    """Print the list, one system, or JSON; returns the exit code."""
    parser = program("fsdp_lab.commands.systems", __doc__)
    parser.add_argument("system", nargs="?", help="the name of a system, or of one of its recipes")
    parser.add_argument("--json", action="store_true", help="print JSON, with all that is known")
    options = parser.parse_args(argv)
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    with user_errors("systems"):
        system = None if options.system is None else table.system(options.system)
    if options.json:
        everything = {"systems": [asdict(one) for one in table.SYSTEMS], "missing": [asdict(one) for one in MISSING]}
        print(json.dumps(everything if system is None else asdict(system), indent=1, ensure_ascii=False))
    else:
        print("\n".join(as_list(width) if system is None else as_page(system, width)))
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
