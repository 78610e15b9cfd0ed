"""Dion on several replicas is its paper's algorithm on the mean gradient, written out here by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import comm_compress as cc
from tests.comm_compress.integrations.optim.replicated.training import (
    FRAGMENTS,
    SHAPES,
    STEPS,
    Virtual,
    digest,
    gradients,
    model,
)

MATRICES = ("wide", "prime", "large")
SETTINGS: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9, "rank_fraction": 0.5, "seed": 3}


def dion(replicas: Any, **settings: Any) -> cc.optim.Dion:
    return cc.optim.Dion(replicas, MATRICES, **{**SETTINGS, **settings})


class Paper:
    """Algorithm 1 of arXiv 2504.05295 in float64, for one replica with the mean of all gradients."""

    def __init__(self, first: dict[str, torch.Tensor]) -> None:
        self.x = {n: p.detach().double().numpy() for n, p in model().named_parameters() if n in MATRICES}
        self.m = {n: np.zeros(SHAPES[n]) for n in MATRICES}
        self.q = {n: q.double().numpy() for n, q in first.items()}

    def step(self, world: int, number: int) -> None:
        for name in MATRICES:
            g = np.mean([gradients(rank, number)[name].double().numpy() for rank in range(world)], 0)
            b = self.m[name] + g
            p, _ = np.linalg.qr(b @ self.q[name])
            r = b.T @ p
            self.m[name] = b - (1 - 0.9) * p @ r.T
            self.q[name] = r / np.linalg.norm(r, axis=0)
            scale = math.sqrt(b.shape[0] / b.shape[1])
            self.x[name] = (1 - 0.02 * 0.1) * self.x[name] - 0.02 * scale * p @ self.q[name].T


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_it_is_the_papers_algorithm_on_the_mean_gradient_and_adamw_for_the_rest(world: int) -> None:
    ours = Virtual(world, dion, FRAGMENTS)
    named = dict(ours.model.named_parameters())
    paper = Paper({n: ours.optimizer.state[named[n]]["Q"].clone() for n in MATRICES})
    stock = model()
    others = [p for n, p in stock.named_parameters() if n not in MATRICES]
    adamw = torch.optim.AdamW(others, lr=0.02, weight_decay=0.1, betas=(0.9, 0.95), foreach=False)
    for number in range(STEPS):
        paper.step(world, number)
        ours.step(number)
        for name, p in stock.named_parameters():
            p.grad = torch.stack([gradients(rank, number)[name] for rank in range(world)]).mean(0)
        adamw.step()
    for name, p in named.items():
        expected = torch.from_numpy(paper.x[name]) if name in MATRICES else stock.get_parameter(name).detach().double()
        torch.testing.assert_close(p.detach().double(), expected, rtol=1e-4, atol=2e-5, msg=name)
    momenta = [
        torch.cat([v["tensors"]["momentum"][0] for v in s.values() if "momentum" in v["tensors"]])
        for s in ours.replicas.state_dicts()
    ]
    mean = torch.stack(momenta).double().mean(0)
    expected = torch.cat([torch.from_numpy(paper.m[n]).reshape(-1) for n in MATRICES])
    torch.testing.assert_close(mean, expected, rtol=1e-3, atol=1e-3)
    assert world == 1 or not torch.allclose(momenta[0], momenta[-1]), "each replica has its own"


@pytest.mark.parametrize("world", [2, 3])
def test_it_sends_factors_of_matrices_and_gradients_of_the_rest(world: int) -> None:
    ours = Virtual(world, dion)
    ours.step(0)
    ranks = {n: max(1, round(0.5 * min(SHAPES[n]))) for n in MATRICES}
    first = sum(SHAPES[n][0] * r for n, r in ranks.items())
    first += sum(math.prod(shape) for n, shape in SHAPES.items() if n not in MATRICES)
    second = sum(SHAPES[n][1] * r for n, r in ranks.items())
    totals = ours.replicas.ledger.totals("optimizer")
    assert totals.sent_bytes == sum(2 * (world - 1) * math.ceil(4 * n / world) for n in (first, second))
    assert totals.value_bytes == totals.sent_bytes < totals.raw_bytes


def test_a_zero_gradient_moves_nothing() -> None:
    still = Virtual(2, lambda r: dion(r, weight_decay=0.0))
    for rank in range(2):
        for p in still.model.parameters():
            p.grad = torch.zeros_like(p)
        still.replicas.collect(rank)
    still.optimizer.step()
    assert digest(still.model.state_dict()) == digest(model().state_dict())
    assert all(bool(s["Q"].any()) for s in still.optimizer.state.values() if "Q" in s), "and the basis is kept"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"momentum": 1.0}, "momentum = 1.0"),
        ({"rank_fraction": 0.0}, "rank_fraction = 0.0"),
        ({"betas": (1.0, 0.9)}, "beta1 = 1.0"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Virtual(2, lambda r: dion(r, **settings))


def test_only_matrices_that_the_replicas_have_are_dions() -> None:
    for names, words in ((["nothing"], "have no 'nothing'"), (["vector"], "Dion is for matrices")):
        with pytest.raises(ValueError, match=words):
            Virtual(2, lambda r, n=names: cc.optim.Dion(r, n, lr=0.1))
