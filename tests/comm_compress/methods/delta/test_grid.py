"""Parameters on a grid: the error of rounding, whatever way they move, for as many bits as movement has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

import comm_compress as cc
from comm_compress.core.segments import segments_of
from comm_compress.drive import simulate
from tests.comm_compress.methods.delta.walks import EIGHTH, SHAPE, parameters, walk
from tests.comm_compress.table import build


def grid(step: float = 0.05) -> cc.Compressor:
    return build("delta", {"mode": "grid", "step": step})


@settings(max_examples=15, deadline=None)
@given(step=st.sampled_from([0.01, 0.1]), share=st.sampled_from([0.1, 0.5, 1.5]), seed=st.integers(0, 100))
def test_a_parameter_is_never_further_than_half_a_step(step: float, share: float, seed: int) -> None:
    """A step of its row, however small or large updates are; the first gather is exact."""
    start = parameters(seed)
    rows = start.square().mean(1, keepdim=True).sqrt()
    seen = walk(grid(step), start / rows, share * step, 0.9, 12)
    assert torch.equal(seen[0][2], seen[0][0])
    for row, _, replica in seen:
        spacing = step * row.view(SHAPE).square().mean(1, keepdim=True).sqrt() * EIGHTH
        assert bool(((replica - row).view(SHAPE).abs() <= spacing / 2 * (1 + 1e-4) + 1e-7).all())


def test_its_error_does_not_look_back() -> None:
    """A dead zone leaves replicas behind their parameters; rounding does not, though its error is as large."""
    lagging = {"values": {"method": "ecsq", "step": 1.4, "dead_zone": 0.9, "columns": False}}
    ways: list[tuple[cc.Compressor, float]] = [(grid(0.05), 0.0), (build("delta", lagging), -0.3)]
    for method, wanted in ways:
        seen = walk(method, torch.ones(SHAPE), 0.02, 0.9, 60)[20:]
        error = torch.cat([replica - row for row, _, replica in seen])
        velocity = torch.cat([v for _, v, _ in seen])
        aligned = float(error @ velocity / error.norm() / velocity.norm())
        assert abs(aligned) < 0.02 if wanted == 0 else aligned < wanted, aligned


@pytest.mark.parametrize("share", [0.05, 0.25, 1.0])
def test_bits_are_the_entropy_of_movement(share: float) -> None:
    """Updates of ``share`` steps from anywhere between two points of the grid."""
    generator = torch.Generator().manual_seed(0)
    sample = torch.rand(1 << 18, generator=generator) - 0.5 + share * torch.randn(1 << 18, generator=generator)
    _, counts = sample.round().unique(return_counts=True)
    chances = counts / counts.sum()
    entropy = float(-(chances * chances.log2()).sum())
    height = 1024  # rows; many, so that heads and tables are nothing
    states = simulate.states(2, "unit", 0, segments_of([("w", (2 * height, 120))], 2))
    rows = [torch.ones(height * 120) + 0.3 * torch.randn(height * 120, generator=generator) for _ in range(2)]
    method, sent = grid(0.05), []
    for number in range(20):
        # once far, to leave the grid's points, where the first gather began
        size = 0.05 * (0.9 if number == 1 else share)
        rows = [row + size * torch.randn(row.shape, generator=generator) for row in rows]
        for state in states:
            state.begin(torch.tensor(True))
        rounds = [method.all_gather(row, state) for row, state in zip(rows, states, strict=True)]
        sent.append(8 * simulate.lockstep(rounds).sent[0].total / (height * 120))
    assert sum(sent[10:]) / 10 == pytest.approx(entropy, abs=0.06)


def test_zeros_begin_to_move() -> None:
    """A bias, or a layer that begins at zero, has no size of its own yet."""
    seen = walk(grid(), torch.zeros(SHAPE), 0.01, 0.9, 5)
    for row, velocity, replica in seen[1:]:
        assert float((replica - row).norm()) < 0.3 * float(velocity.norm())


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"mode": "grid", "step": 0}, "step"),
        ({"mode": "grid", "step": 2}, "step"),
        ({"step": 0.1}, "step"),
        ({"mode": "grid", "values": "int8"}, "values"),
        ({"mode": "grid", "predict": 0.5}, "predict"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"^delta: {key}"):
        cc.make("delta", config)
