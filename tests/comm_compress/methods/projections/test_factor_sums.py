"""Sums of factors: known to all ranks, made up of what they say they gave, in as many bytes as their codec takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from comm_compress.core.segments import flatten, segments_of
from comm_compress.drive import simulate
from comm_compress.methods.projections.factor_sums import FactorSums, Sums
from comm_compress.methods.shared.value_codec import value_codec
from tests.comm_compress.methods.projections.samples import normal, ranks, relative, step, total
from tests.comm_compress.table import build

CODECS: list[Any] = [None, "identity", "int8", "int4", {"method": "ecsq", "step": 0.3, "columns": False}, "bf16"]
SHAPES = [(37, 3), (1, 1), (10, 2)]


def sums(codec: Any, world: int, mark: float = 0.0) -> tuple[list[list[Tensor]], list[Sums]]:
    """Each rank's factors, and what it has in the end. ``mark``: the last rank's."""
    states = ranks(world, segments_of([("w", (4, 4))], world))
    factors = [[normal(*shape, seed=7 * r + i) for i, shape in enumerate(SHAPES)] for r in range(world)]
    summing = FactorSums(value_codec(codec))
    for state in states:
        state.begin()
    rounds = [
        summing.of(mine, torch.tensor(mark if r == world - 1 else 0.0), state)
        for r, (mine, state) in enumerate(zip(factors, states, strict=True))
    ]
    return factors, simulate.lockstep(rounds).results


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("codec", CODECS)
def test_what_ranks_gave_adds_up_to_the_sum_that_all_of_them_know(codec: Any, world: int) -> None:
    factors, seen = sums(codec, world)
    for i, shape in enumerate(SHAPES):
        known = seen[0].totals[i]
        assert known.shape == shape
        assert all(torch.equal(one.totals[i], known) for one in seen)
        torch.testing.assert_close(torch.stack([one.given[i] for one in seen]).sum(0), known, rtol=1e-5, atol=1e-5)
    known, exact = _joined(seen[0].totals), torch.stack([_joined(mine) for mine in factors]).sum(0)
    assert relative(known, exact) < (1e-6 if codec in (None, "identity") else 0.2)


@pytest.mark.parametrize("codec", CODECS)
def test_a_mark_of_one_rank_is_seen_by_all(codec: Any) -> None:
    for one in sums(codec, 3, mark=float("nan"))[1]:
        assert not one.finite
    assert all(one.finite for one in sums(codec, 3)[1])


def test_with_feedback_nothing_is_lost_in_the_long_run() -> None:
    """What arrived in all steps, and what waits in the residuals, are all gradients: rounding of factors included."""
    world, shapes = 3, [("w", (37, 24)), ("bias", (37,)), ("square", (16, 16))]
    segments = segments_of(shapes, world)
    settings = {"rank": 2, "min_compression_rate": 0.1, "values": "int4", "rest": "int4"}
    compressor, states = build("powersgd", settings), ranks(world, segments)
    arrived = given = torch.zeros(())
    for number in range(6):
        seeds = [100 * number + 10 * r for r in range(world)]
        parts = [[normal(*shape, seed=seed + i) for i, (_, shape) in enumerate(shapes)] for seed in seeds]
        rows = [flatten(mine, world) for mine in parts]
        arrived = arrived + total(step(compressor, rows, states))
        given = given + torch.stack(rows).sum(0)
    waiting = torch.stack([state.state_dict()["residual"] for state in states]).sum(0)
    assert relative(arrived, given) > 0.1, "rank 2 of 16 keeps a lot back"
    torch.testing.assert_close(arrived + waiting, given, rtol=1e-4, atol=1e-4)


def test_factors_of_four_bits_take_an_eighth_of_the_bytes() -> None:
    world, shapes = 4, [("w", (512, 256))]
    segments, sent = segments_of(shapes, world), []
    for values in (None, "int4"):
        compressor = build("powersgd", {"rank": 8, "values": values, "error_feedback": False})
        rows = [flatten([normal(512, 256, seed=r)], world) for r in range(world)]
        sent.append(step(compressor, rows, ranks(world, segments)).sent[0].total)
    assert sent[0] == 3 * 2 * 4 * 8 * (512 + 256) // world
    assert 1 / 8 < sent[1] / sent[0] < 1.1 / 8


def _joined(factors: list[Tensor]) -> Tensor:
    return torch.cat([factor.flatten() for factor in factors])
