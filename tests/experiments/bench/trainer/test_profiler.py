"""The profiler's cost: its arithmetic on planted runs, and its refusals."""

from __future__ import annotations

import pytest

from experiments.bench.trainer.profiler import main, table


def test_the_table_shows_medians_by_method() -> None:
    common = {"read_seconds_per_step": 0.25, "trace_mb_per_step": 2.5}
    lines = [
        {"method": "int8", "step_ms": step, "profiled_step_ms": profiled, "overhead": profiled / step - 1, **common}
        for step, profiled in ((400, 440), (500, 510), (300, 900))
    ]
    _, row = table(lines).splitlines()
    assert row.split() == ["int8", "3", "400", "510", "10.0%", "0.25", "2.50"]


def test_too_few_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--steps", "5"])
    assert stop.value.code == 2
    assert "--steps: got 5, wants a whole number, at least 20" in capsys.readouterr().err
