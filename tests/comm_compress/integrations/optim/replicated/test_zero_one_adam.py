"""0/1 Adam does what its paper's algorithm says, and its public code, written out here by hand; which steps do what;
local steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import comm_compress as cc
from comm_compress.integrations.optim.replicated.parts.intervals import (
    is_synchronised,
    is_variance_step,
    variance_steps,
)
from tests.comm_compress.integrations.optim.replicated.training import (
    SHAPES,
    TwoWayByHand,
    Virtual,
    digest,
    gradients,
    model,
)

BETAS, STEPS = (0.8, 0.95), 12
# exact in steps 1 and 3, local in 7, 9, 10 and 11; 2 and 4 send what was gone, or gradients
SETTINGS: dict[str, Any] = {
    **{"lr": 0.01, "weight_decay": 0.1, "betas": BETAS, "freeze_after": 4, "variance_scaler": 1},
    **{"local_scaler": 2, "max_local_steps": 4},
}


def zero_one(replicas: Any, **settings: Any) -> cc.optim.ZeroOneAdam:
    return cc.optim.ZeroOneAdam(replicas, **{**SETTINGS, **settings})


def rate(step: int) -> float:
    """It changes from step to step."""
    return 0.01 * (1 + step / 10)


class Paper:
    """Algorithm 1 of arXiv 2202.06009 in float64, with Adam's bias correction; ``local``: steps without a message.

    ``compressed``: steps that send gradients in signs, which enter the momentum of all, as in the public code; the
    first step after them forgets what those left out."""

    def __init__(self, world: int, exact: set[int], local: set[int], compressed: set[int]) -> None:
        self.world, self.exact, self.local, self.t, self.updates = world, exact, local, 0, 0
        self.compressed = compressed
        self.x = {n: p.detach().double().numpy() for n, p in model().named_parameters()}
        self.v = {n: np.zeros(shape) for n, shape in SHAPES.items()}
        self.m = [{n: np.zeros(shape) for n, shape in SHAPES.items()} for _ in range(world)]
        self.u = [{n: np.zeros(shape) for n, shape in SHAPES.items()} for _ in range(world)]
        self.since, self.plain = 0.0, 0.0
        self.exchange = TwoWayByHand(world)

    def root(self, name: str) -> np.ndarray:
        return np.sqrt(self.v[name] / (1 - BETAS[1] ** self.updates)) + 1e-8

    def own(self, rank: int, name: str) -> np.ndarray:
        return np.asarray(self.x[name] - self.u[rank][name] / self.root(name))

    def step(self, number: int) -> None:
        self.t += 1
        given = [{n: g.double().numpy() for n, g in gradients(rank, number).items()} for rank in range(self.world)]
        corrected = rate(self.t) / (1 - BETAS[0] ** self.t)
        self.since, self.plain = self.since + corrected, self.plain + rate(self.t)
        if self.t in self.exact:
            mean = {n: np.mean([g[n] for g in given], 0) for n in SHAPES}
            given = [mean] * self.world
            self.updates += 1
            self.v = {n: BETAS[1] * self.v[n] + (1 - BETAS[1]) * mean[n] ** 2 for n in SHAPES}
        if self.t in self.compressed:
            given = [self.exchange.mean(given)] * self.world
        if self.t == max(self.compressed, default=0) + 1:
            self.exchange = TwoWayByHand(self.world)
        for rank, g in enumerate(given):
            for n in SHAPES:
                self.m[rank][n] = BETAS[0] * self.m[rank][n] + (1 - BETAS[0]) * g[n]
                self.u[rank][n] = self.u[rank][n] + corrected * self.m[rank][n]
        if self.t in self.local:
            return
        alike = self.t in self.exact | self.compressed
        moved = dict(self.u[0]) if alike else self.exchange.mean(self.u)
        for n in SHAPES:
            self.x[n] = (1 - 0.1 * self.plain) * self.x[n] - moved[n] / self.root(n)
            for rank in range(self.world):
                self.m[rank][n], self.u[rank][n] = moved[n] / self.since, np.zeros(SHAPES[n])
        self.since = self.plain = 0.0


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize(("until_freeze", "compressed"), [("moves", set()), ("gradients", {2, 4})])
def test_it_is_the_papers_algorithm(world: int, until_freeze: str, compressed: set[int]) -> None:
    paper = Paper(world, {1, 3}, {7, 9, 10, 11}, compressed)
    ours = Virtual(world, lambda r: zero_one(r, until_freeze=until_freeze))
    optimizer = ours.optimizer
    assert isinstance(optimizer, cc.optim.ZeroOneAdam)
    steps = range(1, STEPS + 1)
    assert {step for step in steps if optimizer.updates_variance(step)} == paper.exact
    assert {step for step in steps if not optimizer.synchronises(step)} == paper.local
    assert {step for step in steps if optimizer.compresses_gradients(step)} == compressed
    sent = [0]
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        paper.step(step)
        ours.step(step)
        sent.append(ours.replicas.ledger.totals().sent_bytes)
        for rank in range(world):
            with ours.replicas.own_weights(rank):
                for name, p in ours.model.named_parameters():
                    own = torch.from_numpy(np.asarray(paper.own(rank, name)))
                    torch.testing.assert_close(p.detach().double(), own, rtol=1e-3, atol=2e-4, msg=f"{step} {name}")
        agreed = {n: p.detach().double() for n, p in ours.model.named_parameters()}
        for name, x in paper.x.items():
            torch.testing.assert_close(
                agreed[name], torch.from_numpy(np.asarray(x)), rtol=1e-3, atol=2e-4, msg=f"{step} {name}"
            )
    width = paper.exchange.width
    signs = math.ceil(width / 8) + 4 * math.ceil(width / 1024)
    for step in steps:
        now = sent[step] - sent[step - 1]
        each_way = 4 * width if step in paper.exact else 0 if step in paper.local else signs
        assert now == pytest.approx(2 * (world - 1) * each_way, abs=2 * (world - 1) * 4), step


def test_where_every_step_updates_the_variance_it_is_adamw_on_mean_gradients() -> None:
    ours, stock = Virtual(2, lambda r: zero_one(r, freeze_after=9, variance_scaler=9)), model()
    adamw = torch.optim.AdamW(stock.parameters(), lr=0.01, betas=BETAS, weight_decay=0.1, foreach=False, fused=False)
    for number in range(4):
        ours.step(number)
        for name, p in stock.named_parameters():
            p.grad = torch.stack([gradients(rank, number)[name] for rank in range(2)]).sum(0) / 2
        adamw.step()
    for name, p in stock.named_parameters():
        torch.testing.assert_close(ours.model.get_parameter(name), p, rtol=1e-6, atol=1e-7, msg=name)


def test_where_nothing_is_lost_gradients_until_the_freeze_are_adams_with_a_variance_that_is_updated_rarely() -> None:
    """By `identity`, whose messages are exact, it is AdamW but for the steps in which the variance stays as it is."""
    ours = Virtual(2, lambda r: zero_one(r, until_freeze="gradients", method="identity", weight_decay=0.0))
    x = {n: p.detach().double() for n, p in model().named_parameters()}
    m, v = ({n: torch.zeros(shape, dtype=torch.float64) for n, shape in SHAPES.items()} for _ in range(2))
    updates = 0
    for t in range(1, 5):
        ours.step(t)
        updates += t in (1, 3)
        for n in SHAPES:
            mean = torch.stack([gradients(rank, t)[n].double() for rank in range(2)]).mean(0)
            m[n] = BETAS[0] * m[n] + (1 - BETAS[0]) * mean
            if t in (1, 3):
                v[n] = BETAS[1] * v[n] + (1 - BETAS[1]) * mean**2
            root = (v[n] / (1 - BETAS[1] ** updates)).sqrt() + 1e-8
            x[n] = x[n] - 0.01 / (1 - BETAS[0] ** t) * m[n] / root
    for n, p in ours.model.named_parameters():
        torch.testing.assert_close(p.detach().double(), x[n], rtol=1e-5, atol=1e-5, msg=n)


def test_intervals_double() -> None:
    updates = [step for step in range(1, 120) if is_variance_step(step, 16)]
    assert updates[:18] == [*range(1, 17), 18, 20]
    assert updates[31:34] == [48, 52, 56], "16 at every step, 16 at every second one, then every fourth"
    assert [variance_steps(step, 16) for step in range(120)] == [sum(u <= step for u in updates) for step in range(120)]
    synchronised = [step for step in range(1, 60) if is_synchronised(step, 10, 10, 4)]
    assert synchronised == [*range(1, 21), 22, 24, 26, 28, 30, *range(32, 60, 4)], "the longest interval is 4"
    assert is_synchronised(10**9, 10, 1, 1)


def test_a_step_of_each_replica_alone_sends_nothing_and_a_nan_stays_with_its_replica() -> None:
    ours, straight = (Virtual(2, lambda r: zero_one(r, weight_decay=0.0)) for _ in range(2))
    sent = 0
    for step in range(1, 8):
        ours.step(step, spoiled=1 if step == 7 else None)
        straight.step(step)
        sent = ours.replicas.ledger.totals().sent_bytes if step == 6 else sent
    assert ours.replicas.ledger.totals().sent_bytes == straight.replicas.ledger.totals().sent_bytes == sent > 0
    assert ours.optimizer.finite  # type: ignore[attr-defined]
    agreed = digest(ours.model.state_dict())
    assert agreed == digest(straight.model.state_dict())
    own = []
    for one in (ours, straight):
        for rank in range(2):
            with one.replicas.own_weights(rank):
                own.append(digest(one.model.state_dict()))
    assert own[1] == agreed, "the spoiled one has not moved"
    assert own[0] == own[2] != agreed, "the other has"
    assert own[3] not in (agreed, own[0])
    assert digest(ours.model.state_dict()) == agreed, "outside are what all agreed on"


def test_a_training_may_end_in_a_step_that_synchronises() -> None:
    ours = Virtual(2, lambda r: zero_one(r, ends_at=11))
    for step in range(1, 12):
        ours.step(step)
    shared = digest(ours.model.state_dict())
    for rank in range(2):
        with ours.replicas.own_weights(rank):
            assert digest(ours.model.state_dict()) == shared


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"freeze_after": 0}, "freeze_after = 0"),
        ({"variance_scaler": 0}, "variance_scaler = 0"),
        ({"max_local_steps": 0}, "max_local_steps = 0"),
        ({"betas": (0.9, 1.0)}, "beta2 = 1.0"),
        ({"until_freeze": "signs"}, "until_freeze = 'signs': must be one of moves, gradients"),
        ({"method": "powersgd"}, "does not send one message"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        Virtual(2, lambda r: zero_one(r, **settings))
    assert words in str(error.value)
