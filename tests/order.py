"""In which order files of tests are begun where several run side by side: those that take longest first.

A file that takes forty seconds and is begun last leaves all cores but one with nothing to do. `FILE` says how long each
took. Only its order matters, so it may be old; ``pytest --write_seconds`` writes what the tests of that run took beside
what is known of the others: ``pytest --write_seconds tests/NEW_FILES`` adds new files.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("seconds.json")
ROOT = Path(__file__).resolve().parents[1]


def longest_first(items: list[pytest.Item], seconds: dict[str, float]) -> None:
    """Sort ``items``, in place, by the ``seconds`` that their files take; a file's own stay together and in order.

    A file of which nothing is known, a new one, comes before all others.
    """
    items.sort(key=lambda item: -seconds.get(file_of(item.nodeid), math.inf))


def read() -> dict[str, float]:
    """How many seconds each file took, by its path from the root."""
    seconds: dict[str, float] = json.loads(FILE.read_text())
    return seconds


def file_of(nodeid: str) -> str:
    """The file of a test."""
    return nodeid.partition("::")[0]


class Stopwatch:
    """Hears of all tests, in whatever process they run, and writes `FILE` in the end."""

    def __init__(self) -> None:
        self._seconds = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[file_of(report.nodeid)] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        rounded = {path: round(seconds, 1) for path, seconds in self._seconds.items()}
        known = {path: seconds for path, seconds in read().items() if (ROOT / path).is_file()}
        FILE.write_text(json.dumps(dict(sorted({**known, **rounded}.items())), indent=0) + "\n")
