"""A grid whose steps follow the moves: as far away in moves at any learning rate, and never behind for good."""

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
    grid = build("delta", {"mode": "grid", "step": 1.0})
    without, some = ([*walk(m, torch.ones(SHAPE), update, 0.9, 80)[60:]] for m in (grid, limited(4.0)))
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


def test_after_a_whole_row_it_begins_anew() -> None:
    """All elements are exact again, and so in the same place: once more nothing is behind."""
    seen = walk(limited(16.0), torch.ones(SHAPE), 0.01, 1.0, 40, drift=0.01, not_finite=32)
    row, _, replica = seen[-1]
    assert torch.equal(seen[33][2], seen[33][0]), "the whole row was sent"
    assert abs(float((row - replica).mean()) / 0.01) < 0.3


def test_the_state_of_a_grid_alone_is_begun_anew() -> None:
    """A method that was changed at a checkpoint finds no moves there."""
    states = simulate.states(2, "unit", 0, segments_of([("w", (2 * SHAPE[0], SHAPE[1]))], 2))
    for number, method in enumerate([build("delta", {"mode": "grid"})] * 2 + [limited(4.0)] * 2):
        row = torch.ones(SHAPE).flatten() + 0.001 * number
        for state in states:
            state.begin(torch.tensor(True))
        gathered = simulate.all_gather(method, [row, row], states)
        if number == 2:
            assert torch.equal(gathered[0][0], row)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"mode": "grid", "moves": 0}, "moves"),
        ({"mode": "grid", "moves": 1000}, "moves"),
        ({"moves": 4}, "moves"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"^delta: {key}"):
        cc.make("delta", config)
