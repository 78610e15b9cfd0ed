"""Gradients by way of owners: against sums by hand, in bytes against slices, and who learns of a NaN."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from comm_compress.core.segments import Segment, flatten, segments_of, unflatten
from comm_compress.drive import simulate
from comm_compress.integrations import handle
from comm_compress.methods.owners.submatrices import divided
from tests.comm_compress.methods.projections.samples import normal, ranks, relative, step, total
from tests.comm_compress.table import build

SHAPES = [("w", (24, 36)), ("bias", (24,)), ("conv", (10, 3, 4, 2)), ("thin", (2, 5))]
WORLDS = [1, 2, 3, 4, 8]


def unit(world: int) -> tuple[tuple[Segment, ...], list[list[Tensor]]]:
    """Segments of a unit and each rank's full gradients."""
    gradients = [[normal(*shape, seed=10 * r + i) for i, (_, shape) in enumerate(SHAPES)] for r in range(world)]
    return segments_of(SHAPES, world), gradients


def run(settings: dict[str, Any], gradients: list[list[Tensor]], segments: tuple[Segment, ...]) -> simulate.Outcome:
    world = len(gradients)
    return step(build("owners", settings), [flatten(g, world) for g in gradients], ranks(world, segments))


def arrived(outcome: simulate.Outcome, segments: tuple[Segment, ...]) -> list[Tensor]:
    return unflatten(total(outcome), segments)


@pytest.mark.parametrize("world", WORLDS)
def test_uncompressed_both_ways_it_is_the_sum(world: int) -> None:
    segments, gradients = unit(world)
    outcome = run({"there": "identity", "back": "identity"}, gradients, segments)
    for i, summed in enumerate(arrived(outcome, segments)):
        torch.testing.assert_close(summed, torch.stack([parts[i] for parts in gradients]).sum(0))
    assert outcome.rounds == 2


@pytest.mark.parametrize("world", [2, 3, 5])
def test_each_submatrix_is_rounded_by_each_rank_and_its_sum_once_more(world: int) -> None:
    """By hand: all ranks' int8 of a submatrix, added up in rank order, then int8 of what each rank's shard has."""
    segments, gradients = unit(world)
    seen = total(run({"there": "int8", "back": "int8", "error_feedback": False}, gradients, segments))
    int8, division = build("int8", {}), divided(segments, world)

    def rounded(row: Tensor) -> Tensor:
        state = simulate.states(1)[0]
        return int8.decode(int8.encode(row.unsqueeze(0), state))[0]

    for owner in range(world):
        if not division.size(owner):
            continue
        given = [rounded(division.row(division.matrices(flatten(parts, world)), owner)) for parts in gradients]
        summed = functools.reduce(torch.add, given)
        for rank in range(world):
            if not (shares := division.shares(owner, rank)):
                continue
            expected = rounded(torch.cat([summed[share.start : share.stop] for share in shares]))
            found = torch.cat([share.of_shard(seen[rank]).flatten() for share in shares])
            assert torch.equal(found, expected)


@pytest.mark.parametrize("world", [4, 8, 16])
def test_factors_of_whole_submatrices_take_fewer_bytes_than_those_of_slices(world: int) -> None:
    """Of a gradient of rank 2 on every rank, both arrive; a slice's factors take more, the more ranks there are."""
    low = [normal(96, 2, seed=r) @ normal(2, 96, seed=100 + r) for r in range(world)]
    segments, rows = segments_of([("w", (96, 96))], world), [flatten([g], world) for g in low]
    factors = {"method": "lowrank", "rank": 2, "lines": 0.0, "values": "identity", "right": "identity"}
    sent = {}
    for name, method in {
        "owners": build("owners", {"there": factors, "back": "identity", "error_feedback": False}),
        "slices": build("lowrank", {k: v for k, v in factors.items() if k != "method"} | {"error_feedback": False}),
    }.items():
        states = ranks(world, segments)
        for _ in range(3):  # subspace iteration from random factors
            outcome = step(method, rows, states)
        (mean,) = arrived(outcome, segments)
        assert relative(mean, torch.stack(low).sum(0)) < 1e-3
        sent[name] = sum(count.total for count in outcome.sent)
    back = 4 * 96 * 96 * (world - 1) / world
    assert sent["owners"] - back < 0.75 * sent["slices"]


def test_feedback_makes_good_what_an_owner_rounds_away() -> None:
    """The mean of what arrives of a gradient that stays the same comes as near as 1 / steps."""
    world = 3
    segments, gradients = unit(world)
    method, states = build("owners", {"there": "identity", "back": "int4"}), ranks(world, segments)
    expected = total(run({"there": "identity", "back": "identity"}, gradients, segments))
    rows = [total(step(method, [flatten(g, world) for g in gradients], states)) for _ in range(40)]
    once, mean = relative(rows[0], expected), relative(torch.stack(rows).mean(0), expected)
    assert once > 0.02
    assert mean < once / 15


@pytest.mark.parametrize("world", [2, 3])
def test_a_checkpoint_goes_on_bit_for_bit(world: int) -> None:
    """As `Handle` saves and loads it, with the layouts of what each owner's row holds."""
    settings = {"there": {"method": "lowrank", "rank": 2}}
    segments, gradients = unit(world)
    method, states, rows = build("owners", settings), ranks(world, segments), [flatten(g, world) for g in gradients]
    for _ in range(2):
        step(method, rows, states)
    again = ranks(world, segments)
    for state, other in zip(states, again, strict=True):
        assert any(name.endswith("right_factors") for name in state.state_dict()), "there is something to remember"
        handle.load({"unit": handle.save(state)}, {"unit": other})
    for _ in range(2):
        assert torch.equal(total(step(method, rows, states)), total(step(build("owners", settings), rows, again)))


@pytest.mark.parametrize(("bad", "column"), [(math.nan, 0), (math.inf, 63)])
def test_a_rank_with_nothing_but_padding_learns_of_a_nan(bad: float, column: int) -> None:
    """Two rows on three ranks: the last one's shard is padding, and only rank 0 sends it anything."""
    world, segments = 3, segments_of([("w", (2, 64))], 3)
    gradients = [normal(2, 64, seed=r) for r in range(world)]
    method = build("owners", {})
    for result in step(method, [flatten([g], world) for g in gradients], ranks(world, segments)).results:
        assert torch.isfinite(result.total).all()
    gradients[1][1, column] = bad  # of rank 1's submatrix, then of rank 0's
    outcome = step(method, [flatten([g], world) for g in gradients], ranks(world, segments))
    assert [bool(torch.isfinite(result.total).all()) for result in outcome.results] == [False] * world


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"there": "powersgd"}, "there = 'powersgd': must be a method for gradients that encodes row by row"),
        ({"there": "randomk"}, "there = 'randomk': must be a method for gradients that encodes row by row"),
        ({"there": "delta"}, "there = 'delta': must be a method for gradients"),
        ({"there": "int9"}, "there: unknown compression method 'int9'"),
        ({"back": "lowrank"}, "back = 'lowrank': must be a method for gradients that encodes single rows"),
    ],
)
def test_methods_that_cannot_go_this_way_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="owners: ") as refused:
        build("owners", settings)
    assert message in str(refused.value)


def test_units_whose_parameters_are_unknown_are_refused() -> None:
    with pytest.raises(ValueError, match="which parameter lies where"):
        step(build("owners", {}), [torch.ones(1, 8)], ranks(1, ()))
