"""The summary of a run's end: what matters stands first, and says what the row says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsdp_lab import results
from fsdp_lab.run.display.summary import summary

ROWS = results.load(Path(__file__).resolve().parents[4] / "results" / "reference" / "fresh_weights" / "first_run.jsonl")


def heads(row: dict[str, Any]) -> list[str]:
    """The names of the lines before the first empty one, without the run's."""
    _, run, *lines = summary(row, {}).splitlines()
    assert run.startswith("run ")
    return [line[:13].strip() for line in lines[: lines.index("")]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["compress_method"])
def test_quality_bytes_and_step_time_come_first(row: dict[str, Any]) -> None:
    assert heads(row) == ["quality", "sent", "step time"]
    quality, sent, step = summary(row, {}).splitlines()[2:5]
    assert f"PPL {row['val_ppl']:.2f} " in quality
    assert f"({row['bytes_raw_total'] / row['bytes_compressed_total']:.2f}x)" in sent
    assert f" {row['step_time_ms_p50']:.0f} ms median" in step


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({"bytes_raw_total": 0, "bytes_compressed_total": 0}, ["quality", "step time"]),  # one rank
        ({"virtual_ranks": 2}, ["quality", "sent", "ranks"]),
    ],
)
def test_what_a_run_does_not_have_is_left_out(change: dict[str, Any], lines: list[str]) -> None:
    text = summary(ROWS[-1] | change, {})
    assert heads(ROWS[-1] | change) == lines
    assert ("speed " in text) is ("virtual_ranks" not in change)


def test_local_steps_are_one_line() -> None:
    outer = {"outer": "diloco", "outer_every": 30, "outer_method": "none", "outer_gather_method": "none"}
    row = ROWS[-1] | outer | {"outer_bits": 2.1333, "outer_bytes": 20_900_000}
    (line,) = [line for line in summary(row, {}).splitlines() if line.startswith("local steps")]
    assert line.split("  ", 1)[1] == (
        "diloco, synchronised every 30 steps by torch's all-reduce: 2.13 bits a parameter and step; outer state of "
        "20.9 MB a rank"
    )
    assert "by int4 + int8:" in summary(row | {"outer_method": "int4", "outer_gather_method": "int8"}, {})
    assert "local steps" not in summary(ROWS[-1], {})
    config = ROWS[-1]["config"] | {"outer_by_gradient": "embeddings", "outer_gradient_every": None, "outer_every": 30}
    assert ", embeddings by their gradients every 30 steps: 2.13 bits" in summary(row | {"config": config}, {})
    config["outer_gradient_every"] = 1
    assert ", embeddings by their gradients every 1 step: 2.13 bits" in summary(row | {"config": config}, {})
    config["outer_gradient_compress"] = "powersgd rank=4"
    assert "gradients every 1 step by powersgd rank=4: 2.13 bits" in summary(row | {"config": config}, {})
    config |= {"outer_by_gradient": "all", "outer_gradient_compress": "none"}
    assert "none, all by their gradients every 1 step by torch's all-reduce: 2.13" in summary(
        row | {"config": config}, {}
    )
