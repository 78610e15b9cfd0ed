"""Parameters on a grid: the error of rounding, whatever way they move, for as many bits as movement has."""

from __future__ import annotations

from itertools import pairwise
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


def limited(moves: float) -> cc.Compressor:
    """A grid that is so coarse that the moves' limit alone counts."""
    return build("delta", {"mode": "grid", "step": 1.0, "moves": moves})


@settings(max_examples=15, deadline=None)
@given(moves=st.sampled_from([1.0, 4.0, 16.0]), update=st.sampled_from([1e-6, 1e-3]), seed=st.integers(0, 100))
def test_a_limit_keeps_it_within_the_largest_moves(moves: float, update: float, seed: int) -> None:
    """Of its row, so far, that came twice: so many, as rounding is at random at first; or half of what was left."""
    start = parameters(seed)
    start /= start.square().mean(1, keepdim=True).sqrt()
    seen = walk(limited(moves), start, update, 0.9, 12)
    largest, last = torch.zeros(2, SHAPE[0], 1)
    for (before, _, old), (row, _, replica) in pairwise(seen):
        move, left = ((row - x).view(SHAPE).square().mean(1, keepdim=True).sqrt() for x in (before, old))
        largest, last = torch.maximum(largest, torch.minimum(move, last)), move
        spacing = torch.maximum(moves * largest, left / 2) * EIGHTH
        rounding = 1e-6 * row.view(SHAPE).abs()
        assert bool(((replica - row).view(SHAPE).abs() <= spacing * (1 + 1e-4) + rounding).all())


@pytest.mark.parametrize("update", [0.03, 1e-3, 1e-5])
def test_with_a_limit_its_error_in_moves_is_the_same_at_any_rate(update: float) -> None:
    """Of rounding: moves / sqrt(12), of the largest. Without one it is as large as the rate is small."""
    without, some = ([*walk(m, torch.ones(SHAPE), update, 0.9, 80)[60:]] for m in (grid(1.0), limited(4.0)))
    far, near = (
        torch.cat([replica - row for row, _, replica in seen]).square().mean().sqrt() for seen in (without, some)
    )
    assert 0.9 < float(near) / update / (4 / 12**0.5) < 1.7
    assert far > 3 * near


def test_nothing_is_behind_from_the_first_step_on() -> None:
    """Replicas begin exact: rounded to nearest, all of them would stay behind for as long as half a step takes."""
    behind = []
    for method in (limited(16.0), build("delta", {"mode": "grid", "step": 0.16})):
        # all moves point one way and are alike, as the first of Adam are
        seen = walk(method, torch.ones(SHAPE), 0.01, 1.0, 7, drift=0.01)
        row, _, replica = seen[-1]
        behind.append(float((row - replica).mean()) / 0.01)
    assert abs(behind[0]) < 0.3
    assert behind[1] > 3


def test_weights_that_are_loaded_are_no_move() -> None:
    """One large move alone leaves the step as it was, and replicas arrive."""
    jump = 30 * torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)).flatten()
    for when in (1, 10):  # as the first move of all, too
        seen = walk(limited(4.0), torch.ones(SHAPE), 0.01, 0.9, 30, jumps={when: jump})
        row, _, replica = seen[-1]
        assert float((replica - row).square().mean().sqrt()) < 2 * 0.01 * 4 / 12**0.5


def test_as_moves_become_smaller_the_step_stays_and_bits_are_saved() -> None:
    sent: list[int] = []
    walk(limited(4.0), torch.ones(SHAPE), 0.01, 0.9, 60, decay=0.93, sent=sent)
    assert sum(sent[50:]) < 0.4 * sum(sent[5:15])


def test_rows_that_stand_still_stay() -> None:
    """Those of an embedding that no token names; a layer may begin at zero."""
    sent: list[int] = []
    still = torch.zeros(SHAPE)
    for row, velocity, replica in walk(limited(4.0), still, 0.01, 0.9, 5, moving=slice(0, 1), sent=sent)[1:]:
        assert torch.equal(replica.view(SHAPE)[1:], still[1:])
        assert float((replica - row).norm()) < 3 * float(velocity.norm())
    assert max(sent[1:]) < SHAPE[0] * SHAPE[1] // 8


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"mode": "grid", "step": 0}, "step"),
        ({"mode": "grid", "step": 2}, "step"),
        ({"step": 0.1}, "step"),
        ({"mode": "grid", "values": "int8"}, "values"),
        ({"mode": "grid", "predict": 0.5}, "predict"),
        ({"mode": "grid", "moves": 0}, "moves"),
        ({"mode": "grid", "moves": 1000}, "moves"),
        ({"moves": 4}, "moves"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"^delta: {key}"):
        cc.make("delta", config)
