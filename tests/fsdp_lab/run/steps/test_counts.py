"""What steps add up to: skipped ones are counted by why they were skipped, and too many in a row end the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fsdp_lab.run.steps.counts import StepCounts
from fsdp_lab.settings.groups import RunConfig
from fsdp_lab.training.optim import StepOutcome

ALONE: Any = SimpleNamespace(world=1, device=torch.device("cpu"), sum=lambda values: values)


def counts(said: list[str], **settings: Any) -> StepCounts:
    return StepCounts(ALONE, RunConfig(**settings), lambda step: 10 * step, said.append)


def outcome(taken: bool, clipped: bool = False, scale: float | None = None) -> StepOutcome:
    return StepOutcome(1.0, 0.1, taken, clipped, scale)


def test_sums_of_a_run_without_a_scaler() -> None:
    said: list[str] = []
    done = counts(said, log_interval=1)
    for step, loss in enumerate((3.0, 2.0, 1.0), 1):
        done.add(step, torch.tensor(loss), outcome(taken=step != 2, clipped=step == 3))
    assert not done.is_void
    assert done.row(3) == {
        "steps": 3,
        "tokens_seen": 60,
        "nonfinite_steps": 1,
        "scaler_skipped_steps": None,
        "loss_scale": None,
        "clip_rate": 1 / 3,
        "train_loss": 2.0,
    }
    assert done.tokens_between(1, 3) == 50
    assert done.mean_loss(1) == 1.0
    assert said == ["step skipped: a gradient is not finite (1 so far)"]


def test_too_many_void_steps_in_a_row_end_the_run_and_a_taken_one_begins_anew() -> None:
    done = counts([], max_nonfinite_steps=2)
    for step, taken in enumerate((False, True, False), 1):
        done.add(step, torch.tensor(1.0), outcome(taken))
    assert done.is_void
    with pytest.raises(FloatingPointError, match="2 steps in a row"):
        done.add(4, torch.tensor(1.0), outcome(taken=False))


def test_a_scale_that_overflows_is_no_step_that_is_not_finite_until_it_is_one() -> None:
    said: list[str] = []
    done = counts(said, max_nonfinite_steps=1)
    for step in (1, 2):
        done.add(step, torch.tensor(1.0), outcome(taken=False, scale=2.0))
    row = done.row(2)
    assert (row["scaler_skipped_steps"], row["nonfinite_steps"], row["loss_scale"]) == (2, 0, 2.0)
    assert said == ["step skipped: fp16 overflowed with a loss scale of 2; halved"] * 2
    with pytest.raises(FloatingPointError):
        done.add(3, torch.tensor(1.0), outcome(taken=False, scale=1.0))


def test_another_process_counts_on_also_from_a_checkpoint_that_knows_no_scaler() -> None:
    first, second = counts([], max_nonfinite_steps=3), counts([], max_nonfinite_steps=3)
    for step in (1, 2):
        first.add(step, torch.tensor(float(step)), outcome(taken=False))
    state = first.state_dict()
    del state["scaler_skipped_steps"]
    second.load_state_dict(state)
    assert second.row(2) == first.row(2)
    with pytest.raises(FloatingPointError, match="3 steps in a row"):
        second.add(3, torch.tensor(3.0), outcome(taken=False))
