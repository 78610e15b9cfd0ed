"""Flags that are passed on, and lines that outlive what fails after them."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.runs.measurements import Lines, before_and_after_dashes


def test_only_the_first_dashes_divide() -> None:
    assert before_and_after_dashes(["a", "--", "b", "--", "c"]) == (["a"], ["b", "--", "c"])
    assert before_and_after_dashes(["a", "--b"]) == (["a", "--b"], [])


def test_lines_are_added_to_those_of_earlier_calls_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "lines.json"
    Lines(path).add({"a": 1})
    later = Lines(path)
    later.add({"a": 2})
    assert json.loads(path.read_text()) == later.all == [{"a": 1}, {"a": 2}]
    alone = Lines(None)
    alone.add({"a": 3})
    assert alone.all == [{"a": 3}]
