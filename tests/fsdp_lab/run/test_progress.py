"""What rank 0 shows while it trains."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fsdp_lab.run.display.progress import Progress


def begun(total_steps: int, events: Path | None, done: int = 0) -> Progress:
    progress = Progress(speaks=True)
    progress.begin(total_steps, events, done)
    return progress


def steps_seen(folder: Path, name: str) -> list[int]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [scalar.step for scalar in events.Scalars(name)]


def test_a_resumed_run_goes_on_with_its_events_also_with_those_of_the_old_place(tmp_path: Path) -> None:
    """Before they had a folder of their own they lay beside it, and what came after the checkpoint is forgotten."""
    events = tmp_path / "logs" / "run" / "tensorboard"
    first = begun(6, events)
    for step in (1, 2, 3, 4):
        first.record(step, {"train/loss": 1.0})
    first.close()
    for path in events.iterdir():
        path.rename(events.parent / path.name)
    second = begun(6, events, done=3)
    for step in (4, 5, 6):
        second.record(step, {"train/loss": 1.0})
    second.close()
    assert steps_seen(events, "train/loss") == [1, 2, 3, 4, 5, 6]
    assert [path.name for path in events.parent.iterdir()] == ["tensorboard"]


def test_two_losses_have_two_names_and_the_bar_keeps_to_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = begun(40, None)
    progress.report(20, {"train/loss": 9.5, "comm/sent_bytes_per_step": 14363248.0, "speed/tokens_per_s": 6500.0})
    progress.report(20, {"val/loss": 9.25, "val/ppl": 10404.6})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step 20/40  loss 9.5  sent_bytes_per_step 14,363,248  tokens_per_s 6500"
    assert lines[1] == "step 20/40  val_loss 9.25  val_ppl 10,405"

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    progress = begun(40, None)
    progress.report(20, {"train/loss": 9.5, "comm/sent_bytes_per_step": 14363248.0, "speed/tokens_per_s": 6500.0})
    progress.report(20, {"val/loss": 9.25, "val/ppl": 10404.6})
    progress.close()
    assert "loss=9.5, val_ppl=10,405]" in screen.getvalue()
    assert "sent_bytes_per_step" not in screen.getvalue()


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True
