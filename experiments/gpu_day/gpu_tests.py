"""Run all tests that are marked gpu, and write what became of each after every one: a stop loses nothing.

    python -m experiments.gpu_day.gpu_tests --out tests.json [--seconds 280] [--processes 4] [--may_skip]

The exit code is 1 when a test failed, and when none passed: without a CUDA device all are skipped (``--may_skip``
takes that for a success).
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.gpu_day.table import ROOT
from fsdp_lab.files.atomic import write_json
from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

MARK = "pytest.mark.gpu"
_WRITE_EVERY_S = 2.0
_SHOWN = 1500  # last characters of a failure


class Recorder:
    """A pytest plugin: the outcome of each test, in a file; after ``seconds`` no other test is begun."""

    def __init__(self, out: Path, seconds: float) -> None:
        self.tests: list[dict[str, Any]] = []
        self._out, self._end, self._written = out, time.monotonic() + seconds, 0.0
        self._session: Any = None
        self.stopped = False

    def count(self, outcome: str) -> int:
        """How many tests have ended so."""
        return sum(test["outcome"] == outcome for test in self.tests)

    def pytest_sessionstart(self, session: Any) -> None:
        """Remember the session, to stop it."""
        self._session = session

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be read counts as a test that failed."""
        if report.failed:
            self._add(report, "failed")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note the outcome of a test, and stop in time."""
        if report.when == "call" or report.outcome != "passed":
            self._add(report, report.outcome)
        if time.monotonic() > self._end and self._session is not None:
            self.stopped = True
            several = self._session.config.pluginmanager.getplugin("dsession")  # of pytest-xdist
            for loop in filter(None, (self._session, several)):
                loop.shouldstop = "the stage's time is up"

    def write(self) -> None:
        """Replace the file by what is known now."""
        counts = {outcome: self.count(outcome) for outcome in ("passed", "failed", "skipped")}
        write_json(self._out, {**counts, "stopped_in_time": self.stopped, "tests": self.tests})
        self._written = time.monotonic()

    def _add(self, report: Any, outcome: str) -> None:
        test = {"name": report.nodeid, "outcome": outcome, "seconds": round(getattr(report, "duration", 0.0), 3)}
        if outcome == "failed":
            test["said"] = str(report.longrepr)[-_SHOWN:]
        elif outcome == "skipped" and isinstance(report.longrepr, tuple):
            test["said"] = str(report.longrepr[-1])
        self.tests.append(test)
        if time.monotonic() > self._written + _WRITE_EVERY_S:
            self.write()


def files(tests: Path) -> list[Path]:
    """The files below ``tests`` that have tests with the mark: to read all others would take most of a minute."""
    return sorted(path for path in tests.rglob("test_*.py") if MARK in path.read_text(encoding="utf-8"))


def main(argv: Sequence[str]) -> int:
    """Run the tests; returns the exit code."""
    options = _parser().parse_args(argv)
    with user_errors("gpu_tests"):
        if importlib.util.find_spec("pytest") is None:
            raise ValueError("pytest is missing: pip install -e '.[dev]'")
        tests = [str(path.relative_to(ROOT)) for path in files(ROOT / "tests")]
    import pytest

    recorder = Recorder(options.out, options.seconds)
    several = importlib.util.find_spec("xdist") is not None and options.processes > 1
    words = ["-m", "gpu", "-p", "no:cacheprovider", "--rootdir", str(ROOT), *tests]
    code = pytest.main([*words, *(["-n", str(options.processes)] if several else [])], plugins=[recorder])
    recorder.write()
    passed, failed, skipped = (recorder.count(outcome) for outcome in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped{', stopped in time' if recorder.stopped else ''}")
    if failed or code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        return 1
    if not passed and not (options.may_skip and skipped):
        print("no test passed: torch sees no CUDA device, or there are no such tests", file=sys.stderr)
        return 1
    return 0


def _parser() -> Parser:
    parser = program("experiments.gpu_day.gpu_tests", __doc__)
    parser.add_argument("--out", type=new_file(".json"), required=True, help="what became of each test")
    parser.add_argument("--seconds", type=whole(1), default=280, help="after these no other test is begun")
    parser.add_argument("--processes", type=whole(1), default=1, help="tests at the same time (pytest-xdist)")
    parser.add_argument("--may_skip", action="store_true", help="it is no failure when all tests are skipped")
    return parser


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
