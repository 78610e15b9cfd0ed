"""What benchmarks of whole runs share: flags of their own before ``--``, and a file that their lines are added to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def before_and_after_dashes(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first ``--`` and those after it, which go to every run."""
    words = list(argv)
    split = words.index("--") if "--" in words else len(words)
    return words[:split], words[split + 1 :]


class Lines:
    """The lines of a JSON file, those of earlier calls first; without a file they are only kept in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.all: list[Line] = json.loads(path.read_text()) if path is not None and path.exists() else []

    def add(self, line: Line) -> None:
        """Add a line and write the file at once: what follows may fail."""
        self.all.append(line)
        if self._path is not None:
            self._path.write_text(json.dumps(self.all, indent=1) + "\n")
