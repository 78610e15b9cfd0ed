"""The help of every command, each in a forked process of its own: a program, for `test_help`.

    python -m tests.fsdp_lab.commands.light_help

prints a JSON object: by the command's words its exit code, the first line that it printed, and which of `HEAVY` were
imported for it. It has to be a process that has none of them itself, which that of the tests is not.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import sys
from typing import Any

from fsdp_lab.commands.main import main
from fsdp_lab.commands.table import COMMANDS

HEAVY = ("torch", "transformers", "numba", "scipy", "matplotlib", "pandas")
"""What takes a command longer than all else of its help together."""

TORCHRUNS = ("launch",)  # its flags, and so its help, are torchrun's own, which cannot be had without torch
ASKED = tuple(command.words for command in COMMANDS if command.words not in TORCHRUNS)


def asked(words: str) -> dict[str, Any]:
    """What a command makes of ``--help``."""
    said = io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(said):
        try:
            code = main([*words.split(), "--help"])
        except SystemExit as ending:
            code = ending.code or 0
    return {"code": code, "first": said.getvalue().split("\n", 1)[0], "heavy": _heavy()}


def _heavy() -> list[str]:
    return [name for name in HEAVY if name in sys.modules]


if __name__ == "__main__":
    import fsdp_lab.parallel.planning.plan  # most of what commands import for their flags: once for all of them
    import fsdp_lab.settings.config  # noqa: F401

    assert not _heavy(), _heavy()
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as processes:
        found = processes.map_async(asked, ASKED, chunksize=1).get(timeout=120)
    print(json.dumps(dict(zip(ASKED, found, strict=True))))
