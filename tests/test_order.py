"""Which files of tests are begun first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import order

ROOT = Path(__file__).resolve().parents[1]


def test_files_that_take_long_are_begun_first_and_new_ones_before_them() -> None:
    names = ["short.py::a", "short.py::b[x::y]", "long.py::a", "new.py::b", "new.py::a", "short.py::c"]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    order.longest_first(items, {"short.py": 0.1, "long.py": 7.0, "gone.py": 9.0})
    assert [item.nodeid for item in items] == [names[i] for i in (3, 4, 2, 0, 1, 5)]


def test_what_is_known_is_of_files_that_are_there() -> None:
    known = order.read()
    assert [path for path in known if not (ROOT / path).is_file()] == [], "pytest --write_seconds tests/ONE_FILE"
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    new = here - known.keys()
    assert len(new) < 0.25 * len(here), f"pytest --write_seconds {' '.join(sorted(new))}"


def test_a_run_is_written_beside_what_is_known_of_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "FILE", tmp_path / "seconds.json")
    monkeypatch.setattr(order, "ROOT", tmp_path)
    (tmp_path / "seconds.json").write_text('{"gone.py": 9.0, "c.py": 4.0, "b.py": 5.0}')
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).touch()
    stopwatch = order.Stopwatch()
    for nodeid, duration in (("b.py::x", 1.0), ("a.py::y[1]", 0.26), ("b.py::z", 2.0)):
        report: Any = SimpleNamespace(nodeid=nodeid, duration=duration)
        stopwatch.pytest_runtest_logreport(report)
    stopwatch.pytest_sessionfinish()
    assert order.read() == {"a.py": 0.3, "b.py": 3.0, "c.py": 4.0}
