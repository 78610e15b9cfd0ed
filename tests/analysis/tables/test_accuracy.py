"""Accuracy by arm: in percent, its change in points seed by seed, more is better, a failed run is infinitely bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import Row
from analysis.tables.accuracy import accuracy_table
from analysis.tables.comparison import main
from tests.analysis.planted_rows import arm, died, write


def with_accuracy(rows: list[Row], *shares: float) -> list[Row]:
    return [Row({**row, "val_accuracy": share}) for row, share in zip(rows, shares, strict=True)]


BASE = with_accuracy(arm("none"), 0.40, 0.42, 0.44)
INT8 = with_accuracy(arm("int8", 0.01), 0.399, 0.419, 0.439)


def cells(rows: list[Row]) -> dict[str, list[str]]:
    table = accuracy_table(comparisons(rows)[0], [])
    assert table is not None
    return {line[0]: line[1:] for line in table.rows}


def test_means_and_paired_changes_are_those_planted() -> None:
    found = cells([*BASE, *INT8])
    assert found["none"][0].startswith("42.00 (sd 2.00)")
    assert found["none"][1] == "-"
    assert found["int8 + int8"][1:] == ["-0.100 [-0.100, -0.100]", "3", "-"]


def test_a_failed_run_is_infinitely_bad() -> None:
    accuracy, change, _, failed = cells([*BASE, *INT8[:2], died("int8", 3)])["int8 + int8"]
    assert (accuracy, change, failed) == ("-∞", "lost: seed 3", "1")


def test_older_rows_have_no_such_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accuracy_table(comparisons([*BASE, *arm("int8", 0.01)])[0], []) is None
    assert main([str(write(tmp_path / "old.jsonl", [*arm("none"), *arm("int8")]))]) == 0
    assert "accuracy" not in capsys.readouterr().out
    assert main([str(write(tmp_path / "new.jsonl", [*BASE, *INT8]))]) == 0
    assert "top-1 accuracy, against none" in capsys.readouterr().out
