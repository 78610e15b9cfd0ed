"""When fragments are sent, how models are divided into them, and how bits are counted."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import comm_compress as cc
from comm_compress.integrations.replicas.fragments import divide, trainable
from tests.comm_compress.integrations.outer.training import Net, adam


@pytest.mark.parametrize(("every", "number"), [(1, 1), (5, 1), (5, 2), (6, 3), (7, 7), (30, 4)])
def test_each_fragment_has_one_turn_in_every_period(every: int, number: int) -> None:
    schedule = cc.outer.Schedule(every, number)
    turns = [schedule.sent_after(step) for step in range(1, 3 * every + 1)]
    assert all(len(turn) <= 1 for turn in turns), "no two share a step"
    for p in range(number):
        steps = [step for step, turn in enumerate(turns, 1) if p in turn]
        assert len(steps) == 3
        assert {b - a for a, b in itertools.pairwise(steps)} == {every}
    assert every in [step for step, turn in enumerate(turns, 1) if 0 in turn]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"every": 0}, "every = 0"),
        ({"every": 2.0}, "whole number"),
        ({"every": 3, "num_fragments": 4}, "fragments = 4"),
        ({"every": 3, "overlap": 3}, "overlap = 3"),
        ({"every": 3, "overlap": 1, "mixing": 1.0}, "mixing = 1.0"),
        ({"every": 3, "mixing": 0.5}, "only with overlap"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cc.outer.Schedule(**settings)


def test_every_parameter_that_trains_is_in_one_fragment() -> None:
    parameters = trainable(Net())
    assert "frozen.weight" not in parameters
    for number in range(1, len(parameters) + 1):
        fragments = divide(parameters, number)
        names = [name for fragment in fragments for name in fragment.parameters]
        assert names == list(parameters)
        assert len(fragments) == number
    sizes = [
        sum(p.numel() for p in f.parameters.values())
        for f in divide(trainable(nn.Sequential(*[nn.Linear(9, 9) for _ in range(12)])), 4)
    ]
    assert max(sizes) - min(sizes) <= 81
    chosen = divide(parameters, [["last", "scale"], ["first.weight"], ["first.bias", "norm", "frozen"]])
    assert list(chosen[0].parameters) == ["scale", "last.weight", "last.bias"]


@pytest.mark.parametrize(
    ("fragments", "words"),
    [
        (0, "fragments = 0"),
        (99, "number of parameters"),
        ([["first"], ["last"]], "in none of them"),
        ([["first", "norm", "frozen", "scale"], ["last", "first.bias"]], "in fragments 0 and 1"),
        ([["first", "norm", "frozen", "scale", "last"], ["head"]], "names no trainable parameter"),
        (["first", "last"], "a list of lists"),
    ],
)
def test_fragments_that_are_none_are_refused(fragments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        divide(trainable(Net()), fragments)


def test_models_without_parameters_that_could_be_sent_are_refused() -> None:
    with pytest.raises(ValueError, match="requires a gradient"):
        trainable(Net().requires_grad_(False))
    with pytest.raises(ValueError, match="float64"):
        trainable(nn.Linear(2, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="world = 0"):
        cc.outer.VirtualReplicas(Net(), 0, adam, every=1)
    with pytest.raises(ValueError, match="exchange = 'gossip'"):
        cc.outer.VirtualReplicas(Net(), 2, adam, "int8", every=1, exchange="gossip")  # type: ignore[arg-type]


def test_bits_are_of_a_parameter_and_a_local_step() -> None:
    n, world, every = 1000, 4, 30
    all_reduce = 2 * 4 * n * (world - 1) // world
    assert cc.outer.bits(all_reduce, n, 1, world) == 64, "data parallel"
    assert cc.outer.bits(all_reduce, n, every, world) == pytest.approx(64 / 30)
    assert cc.outer.bits(0, n, 7, 1) == 0
    with pytest.raises(ValueError, match="steps = 0"):
        cc.outer.bits(1, n, 0, 2)
