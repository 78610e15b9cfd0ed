"""1-bit Adam: torch's AdamW on mean gradients, then what its paper's equations say, written out here by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import comm_compress as cc
from tests.comm_compress.integrations.optim.replicated.training import (
    SHAPES,
    TwoWayByHand,
    Virtual,
    digest,
    gradients,
    model,
)

FREEZE, BETAS = 3, (0.8, 0.95)
SETTINGS: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "betas": BETAS, "freeze_after": FREEZE}


def onebit(replicas: Any, **settings: Any) -> cc.optim.OneBitAdam:
    return cc.optim.OneBitAdam(replicas, **{**SETTINGS, **settings})


@pytest.mark.parametrize("world", [1, 2])
def test_before_the_freeze_it_is_torchs_adamw_on_mean_gradients_bit_for_bit(world: int) -> None:
    ours, stock = Virtual(world, onebit), model()
    adamw = torch.optim.AdamW(stock.parameters(), lr=0.01, betas=BETAS, weight_decay=0.1, foreach=False, fused=False)
    for number in range(FREEZE):
        ours.step(number)
        for name, p in stock.named_parameters():
            p.grad = torch.stack([gradients(rank, number)[name] for rank in range(world)]).sum(0) / world
        adamw.step()
    assert digest(ours.model.state_dict()) == digest(stock.state_dict())
    exact = 4 * 2 * (world - 1) * sum(math.ceil((*s, 1)[0] / world) * math.prod(s[1:]) for s in SHAPES.values())
    assert ours.replicas.ledger.totals().sent_bytes == FREEZE * exact


class Paper:
    """Algorithm 1 of arXiv 2102.02888 in float64, with Adam's bias correction."""

    def __init__(self, world: int) -> None:
        self.world, self.t = world, 0
        self.weights = {n: p.detach().double().numpy() for n, p in model().named_parameters()}
        self.m = {n: np.zeros(shape) for n, shape in SHAPES.items()}
        self.v = {n: np.zeros(shape) for n, shape in SHAPES.items()}
        self.exchange = TwoWayByHand(world)

    def step(self, number: int) -> None:
        self.t += 1
        given = [{n: g.double().numpy() for n, g in gradients(rank, number).items()} for rank in range(self.world)]
        if self.t <= FREEZE:
            for name in SHAPES:
                g = np.mean([mine[name] for mine in given], 0)
                self.m[name] = BETAS[0] * self.m[name] + (1 - BETAS[0]) * g
                self.v[name] = BETAS[1] * self.v[name] + (1 - BETAS[1]) * g**2
        else:
            of_each = [{n: BETAS[0] * self.m[n] + (1 - BETAS[0]) * mine[n] for n in SHAPES} for mine in given]
            self.m = self.exchange.mean(of_each)
        for name in SHAPES:
            root = np.sqrt(self.v[name] / (1 - BETAS[1] ** min(self.t, FREEZE))) + 1e-8
            self.weights[name] *= 1 - 0.01 * 0.1
            self.weights[name] -= 0.01 * self.m[name] / (1 - BETAS[0] ** self.t) / root


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_after_the_freeze_it_is_the_papers_algorithm(world: int) -> None:
    paper, ours = Paper(world), Virtual(world, onebit)
    before = 0
    for number in range(FREEZE + 3):
        paper.step(number)
        ours.step(number)
        before = ours.replicas.ledger.totals().sent_bytes if number == FREEZE - 1 else before
    for name, p in ours.model.named_parameters():
        expected = torch.from_numpy(paper.weights[name])
        torch.testing.assert_close(p.detach().double(), expected, rtol=1e-4, atol=1e-4, msg=name)
    width = paper.exchange.width
    row = math.ceil(width / 8) + 4 * math.ceil(width / 1024)
    each = ours.replicas.ledger.totals().sent_bytes - before
    assert each == pytest.approx(3 * 2 * (world - 1) * row, abs=3 * 2 * (world - 1) * 4), "one bit there, and one back"


def test_what_had_no_gradient_before_the_freeze_is_not_moved_after_it() -> None:
    ours = Virtual(2, lambda r: onebit(r, weight_decay=0.0))
    for number in range(FREEZE + 2):
        for rank in range(2):
            for name, gradient in gradients(rank, number).items():
                if number < FREEZE and gradient.dim():
                    gradient[1:2] = 0
                ours.model.get_parameter(name).grad = gradient
            ours.replicas.collect(rank)
        ours.optimizer.step()
        ours.optimizer.zero_grad()
    start = model()
    for name, shape in SHAPES.items():
        if shape:
            assert torch.equal(ours.model.get_parameter(name)[1], start.get_parameter(name)[1]), name
            assert not torch.equal(ours.model.get_parameter(name)[0], start.get_parameter(name)[0]), name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"freeze_after": 0}, "freeze_after = 0"),
        ({"betas": (0.9, 1.0)}, "beta2 = 1.0"),
        ({"method": "delta"}, "delta"),
        ({"method": "signsgd mode=majority"}, "a majority is not the sum"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        Virtual(2, lambda r: onebit(r, **settings))
    assert words in str(error.value)
