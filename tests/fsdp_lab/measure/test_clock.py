"""The clock of steps: what is counted, and what is in no statistic."""

from __future__ import annotations

import time

import pytest
import torch

from fsdp_lab.measure.clock import StepClock


def test_a_sampled_step_counts_as_a_usual_one_and_is_in_no_statistic(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = StepClock(torch.device("cpu"), warmup_steps=1)

    def step(seconds: float, keep: bool, sampled: bool = False) -> None:
        clock.start()
        now[0] += seconds
        clock.stop(keep, sampled)
        now[0] += 100  # an evaluation

    step(7, keep=False)
    step(1, keep=True)
    step(3, keep=True)
    step(50, keep=False, sampled=True)
    step(2, keep=True)
    assert clock.train_seconds == 7 + 1 + 3 + 2 + 2
    row = clock.row(tokens_per_step=10)
    assert (row["step_time_ms_mean"], row["steps_timed"], row["warmup_steps_excluded"]) == (2000, 3, 1)
