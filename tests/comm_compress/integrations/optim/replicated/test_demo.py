"""DeMo does what its paper's equations say, written out here by hand; what it sends, keeps and refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import comm_compress as cc
from tests.comm_compress.integrations.optim.replicated.training import (
    FRAGMENTS,
    SHAPES,
    STEPS,
    Virtual,
    gradients,
    model,
)

SETTINGS: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "decay": 0.9}


def demo(replicas: Any, **settings: Any) -> cc.optim.DeMo:
    return cc.optim.DeMo(replicas, **{**SETTINGS, "method": "dct k=5 chunk_size=16", **settings})


def _side(length: int) -> int:
    return max(d for d in range(1, 17) if length % d == 0)


def _cosines(n: int) -> np.ndarray:
    """Coefficient k of x is c_k sum_i x_i cos(pi (2 i + 1) k / 2 n)."""
    rows = [[math.cos(math.pi * (2 * i + 1) * k / (2 * n)) for i in range(n)] for k in range(n)]
    return np.array(rows) * np.array([[math.sqrt((1 if k == 0 else 2) / n)] for k in range(n)])


class Paper:
    """Algorithm 1 of arXiv 2411.19870 in float64, parameter by parameter, chunk by chunk."""

    def __init__(self, world: int, mean: str) -> None:
        self.world, self.mean = world, mean
        self.weights = {n: p.detach().double().numpy() for n, p in model().named_parameters()}
        self.momenta = [{n: np.zeros(shape) for n, shape in SHAPES.items()} for _ in range(world)]
        self.clear = {n: np.ones(shape, dtype=bool) for n, shape in SHAPES.items()}  # a sign that rounding cannot turn

    def step(self, number: int) -> None:
        given = [gradients(rank, number) for rank in range(self.world)]
        for name, shape in SHAPES.items():
            flat = (1, math.prod(shape)) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))
            moved = np.zeros(flat)
            momenta = []
            for rank in range(self.world):
                old = self.momenta[rank][name]
                momenta.append((SETTINGS["decay"] * old + given[rank][name].double().numpy()).reshape(flat))
            high, wide = _side(flat[0]), _side(flat[1])
            down, along = _cosines(high), _cosines(wide)
            for y in range(0, flat[0], high):
                for x in range(0, flat[1], wide):
                    total, senders = np.zeros(high * wide), np.zeros(high * wide)
                    for m in momenta:
                        chunk = m[y : y + high, x : x + wide]
                        frequencies = (down @ chunk @ along.T).reshape(-1)
                        sent = np.zeros_like(frequencies)
                        largest = np.argsort(-np.abs(frequencies), kind="stable")[:5]
                        sent[largest] = frequencies[largest]
                        chunk -= down.T @ sent.reshape(high, wide) @ along
                        total += sent
                        senders[largest] += 1
                    share = np.maximum(senders, 1) if self.mean == "senders" else self.world
                    moved[y : y + high, x : x + wide] = down.T @ (total / share).reshape(high, wide) @ along
            self.clear[name] &= (np.abs(moved) > 1e-5 * np.abs(moved).max()).reshape(shape)
            self.weights[name] *= 1 - SETTINGS["lr"] * SETTINGS["weight_decay"]
            self.weights[name] -= SETTINGS["lr"] * np.sign(moved).reshape(shape)
            for rank in range(self.world):
                self.momenta[rank][name] = momenta[rank].reshape(shape)


@pytest.mark.parametrize("mean", ["senders", "replicas"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_it_is_the_papers_algorithm(world: int, mean: Any) -> None:
    paper, ours = Paper(world, mean), Virtual(world, lambda r: demo(r, mean=mean))
    for number in range(STEPS):
        paper.step(number)
        ours.step(number)
    for name, p in ours.model.named_parameters():
        clear = torch.from_numpy(paper.clear[name])
        assert clear.double().mean() > 0.9, name
        expected = torch.from_numpy(paper.weights[name])
        torch.testing.assert_close(p.detach().double()[clear], expected[clear], rtol=0, atol=1e-6, msg=name)
    for rank, saved in enumerate(ours.replicas.state_dicts()):
        (of_unit,) = saved.values()
        momentum = of_unit["tensors"]["residual"].reshape(-1).double()
        expected = torch.from_numpy(np.concatenate([m.reshape(-1) for m in paper.momenta[rank].values()]))
        torch.testing.assert_close(momentum, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("world", [2, 3])
def test_everyones_whole_message_goes_to_everyone_once_a_step(world: int) -> None:
    ours = Virtual(world, lambda r: demo(r, method="dct"), FRAGMENTS)
    ours.step(0)
    coefficients, bits = 0, 0
    for shape in SHAPES.values():
        flat = (1, math.prod(shape)) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))
        high, wide = (max(d for d in range(1, 65) if n % d == 0) for n in flat)
        chunks, size = math.prod(flat) // (high * wide), high * wide
        coefficients += chunks * min(32, size)
        bits += chunks * (0 if size <= 32 else min(32 * (size - 1).bit_length(), size))  # packed, or a bit for each
    for ledger in ours.replicas.ledgers:
        totals = ledger.totals("optimizer")
        assert totals.calls == len(FRAGMENTS)
        assert totals.value_bytes == (world - 1) * 4 * coefficients
        assert totals.index_bytes <= (world - 1) * bits / 8
        assert totals.metadata_bytes < (world - 1) * 4 * len(FRAGMENTS), "padding alone"
        assert totals.raw_bytes >= 4 * 2 * (world - 1) / world * sum(math.prod(s) for s in SHAPES.values())
    assert ours.replicas.ledger.totals() == ours.replicas.ledger.totals("optimizer")


def test_with_all_cosines_and_no_memory_it_is_the_sign_of_the_mean_gradient() -> None:
    for method in ("dct k=4096", "identity"):
        ours = Virtual(3, lambda r, m=method: demo(r, method=m, mean="replicas", decay=0.0, weight_decay=0.0))
        ours.step(1)
        for name, p in model().named_parameters():
            mean = torch.stack([gradients(rank, 1)[name] for rank in range(3)]).mean(0)
            clear = mean.abs() > 1e-5 * mean.abs().max()
            moved = ours.model.get_parameter(name) - p
            torch.testing.assert_close(moved[clear], -0.01 * mean.sign()[clear], rtol=0, atol=1e-6, msg=name)


def test_groups_have_rates_of_their_own_and_a_parameter_without_a_gradient_is_left_alone() -> None:
    mine = model()
    replicas = cc.optim.VirtualReplicas(mine, 2)
    matrices = [p for p in mine.parameters() if p.dim() == 2]
    others = [p for p in mine.parameters() if p.dim() != 2 and p is not mine.get_parameter("cube")]
    groups = [{"params": matrices}, {"params": [*others, mine.get_parameter("cube")], "weight_decay": 0.0, "lr": 0.5}]
    optimizer = cc.optim.DeMo(replicas, groups, lr=0.1, weight_decay=0.3, method="identity")
    for rank in range(2):
        for name, gradient in gradients(0, 0).items():
            mine.get_parameter(name).grad = None if name == "cube" else gradient
        replicas.collect(rank)
    optimizer.step()
    for name, p in model().named_parameters():
        rate, decay = (0.1, 0.3) if p.dim() == 2 else (0.5, 0.0)
        expected = p * (1 - rate * decay) - rate * gradients(0, 0)[name].sign() if name != "cube" else p
        torch.testing.assert_close(mine.get_parameter(name), expected, msg=name)


REFUSED = {
    "decay = 1.0": {"decay": 1.0},
    "lr = -1": {"lr": -1},
    "method = none": {"method": "none"},
    "does not send one message": {"method": "powersgd"},
    "settings of error feedback": {"method": "dct feedback(decay=0.5)"},
    "keeps what it does not send itself": {"method": "dgc"},
    'mean = "senders": is for dct': {"method": "int8", "mean": "senders"},
    "mean = 'both'": {"mean": "both"},
    "params: there are none": {"params": []},
    "params: must be": {"params": [nn.Parameter(torch.ones(2))]},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_makes_no_sense_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        Virtual(2, lambda r: demo(r, **REFUSED[words]))
    assert words in str(error.value)


def test_each_optimizer_needs_replicas_of_its_own_and_replicas_the_same_parameters() -> None:
    replicas = cc.optim.VirtualReplicas(model(), 2)
    demo(replicas)
    with pytest.raises(ValueError, match="have an optimizer already"):
        demo(replicas)
    ours = Virtual(2, demo)
    ours.model.get_parameter("wide").grad = torch.ones(6, 17)
    ours.replicas.collect(0)
    with pytest.raises(ValueError, match="wide: some replicas have a gradient"):
        ours.optimizer.step()
    with pytest.raises(ValueError, match="fragments = 9"):
        cc.optim.VirtualReplicas(model(), 2, fragments=9)
