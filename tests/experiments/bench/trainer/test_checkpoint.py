"""What checkpoints cost: its table on planted numbers, and its refusals."""

from __future__ import annotations

import pytest

from experiments.bench.trainer.checkpoint import main, table


def test_the_table_has_a_line_a_method() -> None:
    line = {"method": "int8", "step_ms": 400, "saving_step_ms": 410, "exposed_ms": 80, "share": 0.02}
    _, row = table([{**line, "size_mb": 64.25, "start_s": 9.0, "resumed_s": 9.5}]).splitlines()
    assert row.split() == ["int8", "400", "410", "80", "2.0%", "64.2", "9.0", "9.5"]


def test_a_resumed_run_needs_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--steps", "10", "--save_steps", "10"])
    assert stop.value.code == 2
    assert "--save_steps: got 10" in capsys.readouterr().err
