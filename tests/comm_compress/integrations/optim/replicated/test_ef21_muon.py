"""EF21-Muon does what its paper's algorithm says, written out here by hand; what it sends, keeps and refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import comm_compress as cc
from comm_compress.core.compressor import Codec
from comm_compress.integrations.optim.newton_schulz import COEFFICIENTS
from tests.comm_compress.integrations.optim.replicated.training import (
    FRAGMENTS,
    SHAPES,
    STEPS,
    Virtual,
    gradients,
    model,
)

MATRICES = ("wide", "prime")
SETTINGS: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.9}
DIVIDED = 8192  # from so many elements on every replica is the server of some rows


def ef21(replicas: Any, matrices: tuple[str, ...] = MATRICES, **settings: Any) -> cc.optim.EF21Muon:
    return cc.optim.EF21Muon(replicas, matrices, **{**SETTINGS, "method": "topk k=7", **settings})


def _pieces(name: str, matrices: tuple[str, ...], world: int) -> Iterator[slice]:
    """What of a flattened parameter is compressed at once."""
    shape, size = SHAPES[name], math.prod(SHAPES[name])
    each = size if name in matrices or size < DIVIDED else math.ceil(shape[0] / world) * math.prod(shape[1:])
    return (slice(start, min(start + each, size)) for start in range(0, size, each))


def _largest(x: np.ndarray, k: int) -> np.ndarray:
    kept = np.zeros_like(x)
    places = np.argsort(-np.abs(x), kind="stable")[:k]
    kept[places] = x[places]
    return kept


def _orthogonal(g: np.ndarray) -> np.ndarray:
    """Newton and Schulz, five times."""
    a, b, c = COEFFICIENTS
    x = (g if g.shape[0] <= g.shape[1] else g.T) / np.linalg.norm(g)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if g.shape[0] <= g.shape[1] else x.T


class Paper:
    """Algorithm 3 of arXiv 2510.00643 in float64, parameter by parameter; top-k there, and back unless ``k`` is 0."""

    def __init__(self, world: int, matrices: tuple[str, ...], k: int) -> None:
        self.world, self.matrices, self.k = world, matrices, k
        self.w = {n: p.detach().double().numpy().reshape(-1).copy() for n, p in model().named_parameters()}
        self.x = {n: w.copy() for n, w in self.w.items()}
        self.g = {n: np.zeros_like(w) for n, w in self.w.items()}
        self.g_j = [{n: np.zeros_like(w) for n, w in self.w.items()} for _ in range(world)]
        self.m_j = [{n: np.zeros_like(w) for n, w in self.w.items()} for _ in range(world)]

    def step(self, number: int) -> None:
        given = [gradients(rank, number) for rank in range(self.world)]
        for name, shape in SHAPES.items():
            for rank in range(self.world):
                self.m_j[rank][name] = 0.9 * self.m_j[rank][name] + 0.1 * given[rank][name].double().numpy().reshape(-1)
                for piece in _pieces(name, self.matrices, self.world):
                    r = _largest(self.m_j[rank][name][piece] - self.g_j[rank][name][piece], 7)
                    self.g_j[rank][name][piece] += r
                    self.g[name][piece] += r / self.world
            direction = 0.2 * np.sign(self.g[name])
            if name in self.matrices:
                whole = _orthogonal(self.g[name].reshape(shape))
                direction = 0.2 * math.sqrt(max(shape)) * whole.reshape(-1)
            self.x[name] = (1 - 0.01 * 0.1) * self.x[name] - 0.01 * direction
            for piece in _pieces(name, self.matrices, self.world):
                s = self.x[name][piece] - self.w[name][piece]
                self.w[name][piece] += s if self.k == 0 else _largest(s, self.k)


def _held(ours: Virtual, rank: int) -> dict[str, torch.Tensor]:
    """All tensors of a replica by "parameter:start/name"."""
    return {k: t for saved in ours.replicas.state_dicts()[rank].values() for k, t in saved["tensors"].items()}


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize(("matrices", "k"), [(MATRICES, 0), ((), 5)], ids=["Muon, one way", "signs, both ways"])
def test_it_is_the_papers_algorithm(world: int, matrices: tuple[str, ...], k: int) -> None:
    back = f"topk k={k}" if k else None
    paper, ours = Paper(world, matrices, k), Virtual(world, lambda r: ef21(r, matrices, back=back), FRAGMENTS)
    for number in range(STEPS):
        paper.step(number)
        ours.step(number)
    for name, p in ours.model.named_parameters():
        expected, start = torch.from_numpy(paper.w[name]).view(p.shape), model().get_parameter(name).detach()
        error = p.detach().double() - expected
        if name in matrices:  # Newton-Schulz computes in bfloat16
            assert error.norm() < 0.02 * (expected - start).norm(), name
        else:
            assert error.abs().max() < 2e-6, name
        assert not torch.equal(p, start), name
    servers = 0
    for rank in range(world):
        for key, tensor in _held(ours, rank).items():
            piece, _, kind = key.partition("/")
            name, _, start = piece.partition(":")
            of_paper = {"momentum": paper.m_j[rank], "estimate": paper.g_j[rank], "server/estimate": paper.g}
            of_paper["server/exact"] = paper.x
            if kind in of_paper:
                expected = torch.from_numpy(of_paper[kind][name][int(start) : int(start) + tensor.numel()])
                torch.testing.assert_close(tensor.double(), expected, rtol=1e-4, atol=2e-6, msg=key)
                servers += tensor.numel() * (kind == "server/estimate")
    assert servers == sum(math.prod(shape) for shape in SHAPES.values()), "every element has one server"


@pytest.mark.parametrize("back", [None, "identity"])
def test_uncompressed_it_is_muon_without_nesterov_on_the_mean_gradient(back: str | None) -> None:
    ours = Virtual(3, lambda r: ef21(r, ("large",), method="identity", back=back))
    stock = model()
    large = stock.get_parameter("large")
    muon = torch.optim.Muon(
        [large], lr=0.01, weight_decay=0.1, momentum=0.9, nesterov=False, adjust_lr_fn="match_rms_adamw"
    )
    for number in range(STEPS):
        ours.step(number)
        large.grad = torch.stack([gradients(rank, number)["large"] for rank in range(3)]).mean(0)
        muon.step()
    moved, expected = (
        p.detach() - model().get_parameter("large").detach() for p in (ours.model.get_parameter("large"), large)
    )
    assert (moved - expected).norm() < 0.01 * expected.norm()


def test_estimates_reach_what_stands_still() -> None:
    ours = Virtual(2, lambda r: ef21(r, method="topk ratio=0.25", back="topk ratio=0.25", momentum=0.0, lr=1e-4))
    for _ in range(12):
        ours.step(0)
    for rank in range(2):
        held = _held(ours, rank)
        for key, estimate in held.items():
            if key.endswith(":0/estimate"):
                momentum = held[key.replace("/estimate", "/momentum")]
                torch.testing.assert_close(estimate, momentum, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("world", [2, 3])
def test_each_way_takes_a_message_of_every_element_but_a_servers_own(world: int) -> None:
    ours = Virtual(world, lambda r: ef21(r, method="topk ratio=0.1 values=int8", back="signsgd"), FRAGMENTS)
    ours.step(0)
    each_way = [cc.make("topk ratio=0.1 values=int8 no feedback"), cc.make("signsgd no feedback")]
    row_bytes = 0
    for codec in each_way:
        assert isinstance(codec, Codec)
        for name in SHAPES:
            for piece in _pieces(name, MATRICES, world):
                row_bytes += codec.wire_bytes(piece.stop - piece.start) or 0
    totals = [ledger.totals("optimizer") for ledger in ours.replicas.ledgers]
    assert sum(one.sent_bytes for one in totals) == (world - 1) * row_bytes
    assert [one.calls for one in totals] == [len(FRAGMENTS)] * world
    assert [one.extra_collectives for one in totals] == [0] * world
    assert max(one.sent_bytes for one in totals) < 1.2 * min(one.sent_bytes for one in totals), "no server has more"


REFUSED: dict[str, dict[str, Any]] = {
    "momentum = 1.0": {"momentum": 1.0},
    "method = none": {"method": "none"},
    "method: topk with these settings has messages of a size that only": {"method": "topk indices=rice"},
    "method: powersgd with these settings does not send one message": {"method": "powersgd"},
    "back: topk with these settings has messages of a size": {"back": "topk indices=rice"},
    "the replicas have no 'nothing'": {"matrices": ("nothing",)},
    "EF21-Muon is for matrices": {"matrices": ("cube",)},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_makes_no_sense_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        Virtual(2, lambda r: ef21(r, **REFUSED[words]))
    assert words in str(error.value)
