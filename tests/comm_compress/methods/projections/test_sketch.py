"""Sketched-SGD: the largest elements of a sum that no rank ever sees."""

from __future__ import annotations

import pytest
import torch

from comm_compress.wrappers.error_feedback import ErrorFeedback
from tests.comm_compress.methods.projections.samples import normal, ranks, relative, step, total
from tests.comm_compress.table import build


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("keep", ["all", "k"])
def test_a_wide_sketch_gives_the_top_k_of_the_true_sum(world: int, keep: str) -> None:
    n, k = 600, 20
    inputs = [normal(world, n, seed=r) ** 3 for r in range(world)]
    config = {"columns": 200_000, "k": k, "oversample": 1.5, "keep": keep, "error_feedback": False}
    outcome = step(build("sketch", config), inputs, ranks(world))
    expected = torch.stack(inputs).sum(0)
    count = k if keep == "k" else 30
    for got, row in zip(total(outcome), expected, strict=True):
        largest = row.abs().topk(count).indices
        torch.testing.assert_close(got, torch.zeros(n).scatter(0, largest, row[largest]))


def test_heavy_hitters_of_the_sum_are_found_though_small_on_every_rank() -> None:
    """Eight ranks' noise cancels, their common signal does not: planted at 10 of 20000 coordinates, below each
    rank's 1 % largest, all of it is found at 6 % of the bytes. Local top-k of the same size sends noise."""
    world, n, planted = 8, 20_000, 10
    places = torch.randperm(n, generator=torch.Generator().manual_seed(3))[:planted]
    noise = [normal(world, n, seed=r) for r in range(world)]
    noise[-1] = -torch.stack(noise[:-1]).sum(0)  # it cancels altogether
    inputs = []
    for rows in noise:
        signal = torch.zeros(world, n)
        signal[:, places] = 2.0
        inputs.append(rows + signal)
    config = {"columns": 200, "k": planted, "error_feedback": False}
    outcome = step(build("sketch", config), inputs, ranks(world))
    truth = torch.stack(inputs).sum(0)
    torch.testing.assert_close(total(outcome)[:, places], truth[:, places])
    assert outcome.sent[0].total < 0.06 * 4 * (world - 1) * n
    local = build("topk", {"k": planted, "error_feedback": False})
    found = total(step(local, inputs, ranks(world)))
    assert relative(found[:, places], truth[:, places]) > 0.5


@pytest.mark.parametrize("keep", ["all", "k"])
def test_sketch_sends_a_sketch_packed_indices_and_exact_values(keep: str) -> None:
    """n = 1000: 10-bit positions."""
    world, n = 3, 1000
    config = {"sketch_rows": 3, "columns": 20, "k": 6, "oversample": 2, "keep": keep, "error_feedback": False}
    compressor = build("sketch", config)  # of 32 columns
    sent = step(compressor, [normal(world, n, seed=r) for r in range(world)], ranks(world)).sent[0]
    flags = 2 if keep == "k" else 0
    assert sent.values == 2 * (4 * 3 * 32 + 4 * 12)
    assert sent.indices == 2 * (15 + flags)
    assert sent.total == compressor.traffic(n, world)


def test_the_paper_drops_all_but_k_and_feedback_gets_them_back() -> None:
    world, n, k = 2, 500, 10
    inputs = [normal(world, n, seed=r) for r in range(world)]
    compressor = build("sketch", {"columns": 100, "k": k, "keep": "k"})
    assert isinstance(compressor, ErrorFeedback)
    states = ranks(world)
    outcome = step(compressor, inputs, states)
    for owner, result in enumerate(outcome.results):
        kept = result.total.nonzero().flatten()
        assert kept.numel() == k
        for rows, state in zip(inputs, states, strict=True):
            residual = compressor.residual(state)
            assert residual is not None
            assert torch.equal(residual[owner] == 0, torch.zeros(n, dtype=torch.bool).index_fill(0, kept, True))
            others = residual[owner] != 0
            assert torch.equal(residual[owner][others], rows[owner][others])


def test_sketch_with_feedback_delivers_everything_in_the_end() -> None:
    """A constant gradient: the mean of what was delivered tends to it."""
    compressor, states = build("sketch", {"columns": 20, "k": 5}), ranks(2)
    inputs = [normal(2, 100, seed=r) for r in range(2)]
    delivered, steps = torch.zeros(2, 100), 300
    for _ in range(steps):
        delivered += total(step(compressor, inputs, states))
    assert relative(delivered / steps, torch.stack(inputs).sum(0)) < 0.05


def test_the_next_step_draws_other_hash_functions() -> None:
    """Coordinates that hide each other in one step do not in the next: with a single column-starved sketch the
    candidates differ, and every rank still agrees on them."""
    compressor, states = (
        build("sketch", {"sketch_rows": 1, "columns": 10, "k": 5, "error_feedback": False}),
        ranks(2),
    )
    inputs = [normal(2, 400, seed=r) for r in range(2)]
    first, second = (total(step(compressor, inputs, states)) for _ in range(2))
    assert not torch.equal(first, second)
