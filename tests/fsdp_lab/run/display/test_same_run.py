"""The table beside a run's own figures: committed rows of the very same run, by other methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsdp_lab import results
from fsdp_lab.run.display import same_run

ROWS = list(results.load(Path(__file__).resolve().parents[4] / "results" / "reference" / "links" / "targets.jsonl"))


def others(row: dict[str, Any], tmp_path: Path) -> list[str]:
    """What is shown beside ``row`` when the rows of its sweep are the committed ones."""
    rows = tmp_path / "rows.jsonl"
    for one in ROWS:
        results.append(rows, one)
    return same_run.same_run(row, rows)


def row_of(method: str, seed: int) -> dict[str, Any]:
    return next(row for row in ROWS if (row["compress_method"], row["seed"]) == (method, seed))


def test_the_same_run_by_other_methods_is_shown(tmp_path: Path) -> None:
    row = row_of("int4", 2)
    head, *lines, where = others(row, tmp_path)
    assert head.split() == ["the", "same", "run", "by", "method", "sent", "a", "step", "ms", "a", "step", "PPL"]
    names = ["none", "identity + identity", "bf16 + bf16", "int8 + delta", "int4 hadamard + delta (now)"]
    assert [line[:34].strip() for line in lines] == names, "those of seed 2, and this run last"
    none = row_of("none", 2)
    sent = none["bytes_compressed_total"] / none["steps"] / 1e6
    assert lines[0].split()[1:] == [f"{sent:.1f}", "MB", f"{none['step_time_ms_p50']:.0f}", f"{none['val_ppl']:.2f}"]
    assert "may be chance" in where


def test_another_machine_is_named_as_one(tmp_path: Path) -> None:
    row = row_of("none", 1)
    elsewhere = {**row, "hardware": {**row["hardware"], "cores": 64}}
    assert "not this machine, so times cannot be compared" in others(elsewhere, tmp_path)[-1]


@pytest.mark.parametrize("change", [{"steps": 7}, {"world_size": 3}, {"data_digest": "other"}])
def test_another_run_has_nothing_beside_it(tmp_path: Path, change: dict[str, Any]) -> None:
    assert others({**row_of("none", 1), **change}, tmp_path) == []


def test_a_setting_that_is_not_the_methods_makes_another_run(tmp_path: Path) -> None:
    row = row_of("none", 1)
    assert others({**row, "config": {**row["config"], "learning_rate": 1.0}}, tmp_path) == []
    assert others({**row, "config": {**row["config"], "log_interval": 1}}, tmp_path) != []


def test_a_row_from_before_a_setting_existed_did_what_its_default_says(tmp_path: Path) -> None:
    row = row_of("none", 1)
    assert "lora_rank" not in row["config"]
    shown, rows = others(row, tmp_path), tmp_path / "rows.jsonl"
    younger = {**row["config"], "lora_rank": None, "lora_dropout": 0.0}
    assert same_run.same_run({**row, "config": younger}, rows) == shown != []
    assert same_run.same_run({**row, "config": younger | {"lora_rank": 8}}, rows) == []


def test_without_committed_rows_nothing_is_shown(tmp_path: Path) -> None:
    assert same_run.same_run(ROWS[0], tmp_path / "none.jsonl") == []
