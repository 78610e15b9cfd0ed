"""A step of the optimizer: whether it was taken, and clipped."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fsdp_lab.settings.groups import OptimConfig
from fsdp_lab.training.optim import build_optimizer, take_step


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    ("limit", "gradient", "taken", "clipped"),
    [(1.0, 3.0, True, True), (10.0, 3.0, True, False), (0.0, 3.0, True, False), (1.0, math.nan, False, False)],
)
def test_a_step_says_whether_it_was_clipped(limit: float, gradient: float, taken: bool, clipped: bool) -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer, schedule = build_optimizer(model, OptimConfig(learning_rate=0.1, warmup_steps=0), 10)
    model.weight.grad = torch.full((1, 1), gradient)
    outcome = take_step(model, optimizer, schedule, limit)
    assert (outcome.taken, outcome.clipped) == (taken, clipped)
