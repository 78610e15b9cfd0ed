"""In which order files of tests are begun where several run side by side: those that take longest first.

A file that takes forty seconds and is begun last leaves all cores but one with nothing to do. `FILE` says how long each
took. Only its order matters, so it may be old; ``pytest --write_seconds`` writes it anew, after all tests have run.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("seconds.json")


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
        rounded = {path: round(seconds, 1) for path, seconds in sorted(self._seconds.items())}
        FILE.write_text(json.dumps(rounded, indent=0) + "\n")
