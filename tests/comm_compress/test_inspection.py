"""`roundtrip`: what it says of a method is what virtual ranks compute and what their ledger counts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import comm_compress as cc
from comm_compress.core.segments import flatten, segments_of, unflatten
from comm_compress.drive import simulate
from comm_compress.inspection import Direction
from tests.comm_compress.table import IDS, TABLE, build

RANKS, STEPS, SHAPE = 2, 2, (37, 24)  # 37 rows: the last rank has a row of padding
CASES = [
    pytest.param(name, config, direction, id=f"{row}-{direction}")
    for row, (name, config) in zip(IDS, TABLE, strict=True)
    for direction, may in (
        ("gradients", build(name, config).traits.for_gradients),
        ("parameters", build(name, config).traits.for_parameters),
    )
    if may
]


def tensor(dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(SHAPE, generator=torch.Generator().manual_seed(5)) ** 3).to(dtype)


@pytest.mark.parametrize(("name", "config", "direction"), CASES)
def test_what_comes_back_is_what_virtual_ranks_compute(name: str, config: dict[str, Any], direction: Direction) -> None:
    method, segments = build(name, config), segments_of([("weight", SHAPE)], RANKS)
    states = simulate.states(RANKS, "root", 7, segments)
    rows = flatten([tensor()], RANKS)
    for number in range(STEPS):
        for state in states[: RANKS * bool(number)]:
            state.begin()
        if direction == "gradients":
            result = method.contribution(simulate.reduce_scatter(method, [rows] * RANKS, states)[0].sent)
        else:
            result = simulate.all_gather(method, list(rows), states)[0]
    seen = cc.roundtrip(tensor(), build(name, config), direction=direction, ranks=RANKS, seed=7, steps=STEPS)
    assert seen.decoded.dtype == torch.float32
    assert torch.equal(seen.decoded, unflatten(result.float(), segments)[0])


@pytest.mark.parametrize(("name", "config", "direction"), CASES)
def test_its_bytes_are_those_of_the_ledger(
    name: str, config: dict[str, Any], direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = build(name, config)
    monkeypatch.setattr(method, "check_names", lambda names: None)  # rows with layers name other parameters
    before, after = (_counted(method, direction, steps) for steps in (STEPS - 1, STEPS))
    last = after - before
    seen = cc.roundtrip(tensor(), build(name, config), direction=direction, ranks=RANKS, steps=STEPS)
    assert seen.bytes == (last.value_bytes, last.index_bytes, last.metadata_bytes)
    assert seen.elements == last.elements
    assert seen.bits_per_element == 8 * last.sent_bytes / last.elements


class OneWeight(nn.Module):
    """A module with one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(tensor())

    def forward(self) -> Tensor:
        return self.weight


def _counted(method: cc.Compressor, direction: Direction, steps: int) -> cc.Totals:
    """What rank 0's ledger has after so many reductions, or gathers, of a module with one parameter."""
    module = OneWeight()
    op = {"reduce_scatter": method} if direction == "gradients" else {"all_gather": method}
    ranks = cc.VirtualRanks(module, RANKS, [], **op)
    for _ in range(steps):
        with ranks.gathered():
            module()
        if direction == "gradients":
            for rank in range(RANKS):
                module.weight.grad = tensor()
                ranks.collect(rank)
            ranks.reduce()
            module.zero_grad()
    return ranks.ledger.totals()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4, 5), (1, 1)])
def test_any_shape_and_dtype_comes_back_as_it_was(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    sent = torch.ones(shape, dtype=dtype)
    for direction in ("gradients", "parameters"):
        seen = cc.roundtrip(sent, "identity", direction=direction, ranks=3)  # type: ignore[arg-type]
        assert torch.equal(seen.decoded, sent.float())
        assert (seen.error, seen.bits_per_element) == (0, 8 * dtype.itemsize)
        assert seen.cosine == pytest.approx(1)


def test_error_and_cosine_are_those_of_what_came_back() -> None:
    seen = cc.roundtrip(torch.tensor([3.0, 4.0, 0.0, 0.0]), "topk k=1 no feedback", ranks=2)
    assert seen.decoded.tolist() == [0, 4, 0, 0]
    assert (seen.error, seen.cosine) == (pytest.approx(0.6), pytest.approx(0.8))
    assert (seen.bytes.values, seen.elements) == (4, 2), "rank 0 sends one row of two elements to the other rank"


def test_a_method_with_memory_shows_its_later_steps() -> None:
    warming = {steps: cc.roundtrip(tensor(), "int4 warmup_steps=2", steps=steps) for steps in (2, 3)}
    assert warming[2].error == 0
    assert warming[3].error > 0
    again = cc.roundtrip(tensor(), "delta", direction="parameters", steps=2)
    assert again.bytes.total == 8, "nothing has changed: the length of nothing"


def test_the_tensor_is_left_alone() -> None:
    given = tensor()
    given[0, 0] = math.nan
    given.requires_grad_()
    before, generator = given.detach().clone(), torch.get_rng_state()
    seen = cc.roundtrip(given, "qsgd")
    assert not seen.decoded.requires_grad
    assert not torch.isfinite(seen.decoded).all()
    assert math.isnan(seen.error)
    assert torch.equal(given.detach().nan_to_num(7.0), before.nan_to_num(7.0))
    assert torch.equal(torch.get_rng_state(), generator)


def test_it_prints_in_a_line() -> None:
    printed = str(cc.roundtrip(torch.ones(4), "identity"))
    assert printed == (
        "32.000 bits an element (bytes: 8 values, 0 indices, 0 metadata), relative error 0.0000, cosine 1.0000"
    )


@pytest.mark.parametrize(
    ("method", "further", "words"),
    [
        ("none", {}, "none registers no hook"),
        ("int9", {}, "unknown compression method"),
        ("delta", {}, "direction = 'gradients': delta"),
        ("topk", {"direction": "parameters"}, "direction = 'parameters': topk"),
        ("int8", {"direction": "both"}, "direction = 'both': must be one of gradients, parameters"),
        ("int8 scale=global", {"ranks": 128}, "ranks = 128: int8 is defined for at most 127"),
        ("int8", {"ranks": 1}, "ranks = 1"),
        ("int8", {"steps": 0}, "steps = 0"),
        ("int8", {"tensor": torch.ones(2, dtype=torch.int32)}, "must be float32, bfloat16 or float16, not torch.int32"),
        ("int8", {"tensor": torch.ones(0, 3)}, r"no elements, its shape is \(0, 3\)"),
    ],
)
def test_what_cannot_be_sent_is_refused(method: str, further: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cc.roundtrip(**{"tensor": tensor(), "method": method, **further})
