"""All compression methods, or one of them with its settings and what was measured of it.

    python -m fsdp_lab.commands.methods              # all methods, two lines each
    python -m fsdp_lab.commands.methods topk         # its settings, with limits and examples; bits, error, speed
    python -m fsdp_lab.commands.methods common       # the settings that every method takes
    python -m fsdp_lab.commands.methods --json       # everything, for programs

What it shows is in a file made of the registry and of measurements (methods.json), so it needs no torch. Only a method
of another package is looked up in the registry itself.
"""

from __future__ import annotations

import difflib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from typing import cast

import comm_compress as cc
from fsdp_lab.commands.reference.method_pages import as_list, as_page, common_page
from fsdp_lab.commands.reference.methods_file import Method, Methods, bits_by_default, read
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

COMMON = "common"
_PLUGINS = "comm_compress.methods"  # the group of entry points, docs/library/plugins.md


def main(argv: Sequence[str]) -> int:
    """Print the list, one method, or JSON; returns the exit code."""
    parser = program("fsdp_lab.commands.methods", __doc__)
    parser.add_argument("method", nargs="?", help=f"a name, a label such as 'topk ratio=0.01', or {COMMON}")
    parser.add_argument("--json", action="store_true", help="print JSON, with all that is known")
    options = parser.parse_args(argv)
    content = read()
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    lines: Iterator[str]
    known: object
    with user_errors("methods"):
        if options.method is None:
            known, lines = content, as_list(content, width)
        elif options.method == COMMON:
            known, lines = content["common"], common_page(content["common"], width)
        else:
            known = method = asked(options.method, content)
            lines = as_page(method, content, width)
    print(json.dumps(known, indent=1, ensure_ascii=False) if options.json else "\n".join(lines))
    return 0


def asked(label: str, content: Methods) -> Method:
    """The method that ``label`` names, a plugin's too. ValueError for one that is not there, with the nearest name."""
    name = cc.labels.parse_label(label).name
    methods = {method["name"]: method for method in content["methods"]}
    if name in methods:
        return methods[name]
    if entry_points(group=_PLUGINS):
        theirs = cc.describe(name)  # imports torch; ValueError where no plugin has it either
        measured = {"bits": bits_by_default(theirs), "bits_on": "gauss", "fidelity": [], "speed": []}
        return cast(Method, {**theirs, **measured})
    close = difflib.get_close_matches(name, methods, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise ValueError(f"unknown compression method {name!r}{hint}; known: {', '.join(methods)}")


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
