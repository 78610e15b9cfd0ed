"""What rank 0 shows while it trains."""

from __future__ import annotations

import io
import sys

import pytest

from fsdp_lab.run.display.progress import Progress


def begun(total_steps: int) -> Progress:
    progress = Progress(speaks=True)
    progress.begin(total_steps)
    return progress


def test_two_losses_have_two_names_and_the_bar_keeps_to_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = begun(40)
    progress.report(20, {"train/loss": 9.5, "comm/sent_bytes_per_step": 14363248.0, "speed/tokens_per_s": 6500.0})
    progress.report(20, {"val/loss": 9.25, "val/ppl": 10404.6})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step 20/40  loss 9.5  sent_bytes_per_step 14,363,248  tokens_per_s 6500"
    assert lines[1] == "step 20/40  val_loss 9.25  val_ppl 10,405"

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    progress = begun(40)
    progress.report(20, {"train/loss": 9.5, "comm/sent_bytes_per_step": 14363248.0, "speed/tokens_per_s": 6500.0})
    progress.report(20, {"val/loss": 9.25, "val/ppl": 10404.6})
    progress.leave_bar()
    assert "loss=9.5, val_ppl=10,405]" in screen.getvalue()
    assert "sent_bytes_per_step" not in screen.getvalue()


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True
