"""GradiVeQ: bases learnt from samples, linear codes, and a whole cycle's bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from comm_compress.methods.projections.gradiveq import GradiVeQ
from tests.comm_compress.methods.projections.samples import normal, ranks, relative, step, total
from tests.comm_compress.table import build

SMALL = {"slice_size": 16, "dimensions": 3, "basis_warmup": 2, "refresh_every": 5}


def test_gradients_of_a_fixed_subspace_arrive_exactly_at_a_fraction_of_the_bytes() -> None:
    """Planted: slices of every destination in a 3-dimensional subspace of its own, and its own mean if centred."""
    world = 3
    for centre in (False, True):
        bases = normal(world, 3, 16)
        means = normal(world, 1, 16) * centre

        def gradient(seed: int, bases: Tensor = bases, means: Tensor = means) -> list[Tensor]:
            return [(normal(world, 10, 3, seed=10 * seed + r) @ bases + means).flatten(1) for r in range(world)]

        compressor, states = build("gradiveq", {**SMALL, "centre": centre}), ranks(world)
        for number in range(12):
            inputs = gradient(number)
            outcome = step(compressor, inputs, states)
            assert relative(total(outcome), torch.stack(inputs).sum(0)) < 1e-5, number
            compressed = outcome.sent[0].total == (world - 1) * 4 * 10 * 3
            assert compressed == (number >= 2 and number not in {6, 11})


def test_the_basis_is_the_best_one_for_the_samples() -> None:
    """The step after sampling with the sampled gradient again: its error is numpy's trailing singular values."""
    world, n = 2, 640
    inputs = [normal(world, n, seed=r) ** 3 for r in range(world)]
    for centre in (False, True):
        compressor, states = build("gradiveq", {**SMALL, "centre": centre}), ranks(world)
        for _ in range(2):
            step(compressor, inputs, states)
        seen = total(step(compressor, inputs, states)).double()
        for got, row in zip(seen, torch.stack(inputs).sum(0).double(), strict=True):
            slices = row.view(-1, 16).numpy()
            singular = np.linalg.svd(slices - centre * slices.mean(0), compute_uv=False)
            np.testing.assert_allclose(float((got - row).norm() ** 2), (singular[3:] ** 2).sum(), rtol=1e-4)


def test_codes_are_projections_and_their_sum_is_the_projection_of_the_sum() -> None:
    """Each rank's contribution is U U^T (x - mu / W) + mu / W of its own rows; applying it twice changes nothing."""
    world, n = 3, 320
    compressor, states = build("gradiveq", SMALL), ranks(world)
    inputs = [normal(world, n, seed=r) for r in range(world)]
    for _ in range(2):
        step(compressor, inputs, states)
    outcome = step(compressor, inputs, states)
    once = [compressor.contribution(result.sent) for result in outcome.results]
    basis = states[0].get("basis")
    assert basis is not None
    torch.testing.assert_close(basis.mT @ basis, torch.eye(3).expand(world, -1, -1), atol=1e-5, rtol=0)
    twice = [compressor.contribution(result.sent) for result in step(compressor, once, states).results]
    for a, b, rows in zip(once, twice, inputs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        assert float(a.norm()) <= float(rows.norm())


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.5])
def test_all_ranks_keep_the_dimensions_that_the_neediest_needs(loss: float) -> None:
    world, spectra = 2, [0.5, 0.9]
    inputs = [torch.zeros(2, 1600) for _ in range(world)]
    for rank, decay in enumerate(spectra):  # rank r's own row has a spectrum of its own
        inputs[0][rank] = (normal(100, 16, seed=rank) * decay ** torch.arange(16.0)).flatten()
    compressor = build("gradiveq", {"slice_size": 16, "energy_loss": loss, "basis_warmup": 1, "refresh_every": 4})
    states = ranks(world)
    step(compressor, inputs, states)
    step(compressor, inputs, states)
    needed = []
    for row in inputs[0]:
        energy = np.linalg.svd(row.view(-1, 16).double().numpy(), compute_uv=False) ** 2
        needed.append(next(d for d in range(1, 17) if energy[d:].sum() <= loss * energy.sum() + 1e-12))
    for state in states:
        basis = state.get("basis")
        assert basis is not None
        assert basis.shape == (world, 16, max(needed))


ENERGY = {"dimensions": None, "energy_loss": 0.2}


@pytest.mark.parametrize("config", [{}, {"centre": True}, ENERGY, {"sample_steps": 2}])
def test_a_whole_cycle_sends_what_the_formula_says(config: dict[str, Any]) -> None:
    world, n = 3, 1000
    compressor, states = build("gradiveq", {**SMALL, **config}), ranks(world)
    assert isinstance(compressor, GradiVeQ)
    inputs = [normal(world, n, seed=r) for r in range(world)]
    sent = [step(compressor, inputs, states).sent[1].total for _ in range(2 + 2 * 5)]
    basis = states[0].get("basis")
    assert basis is not None
    dimensions = basis.shape[2]
    assert dimensions == 3 or config is ENERGY
    assert sent[2] == (world - 1) * 4 * math.ceil(n / 16) * dimensions
    assert sum(sent[2:7]) == sum(sent[7:12]) == compressor.cycle_bytes(n, world, dimensions)


def test_rows_too_short_to_learn_from_go_uncompressed() -> None:
    compressor, states = build("gradiveq", SMALL), ranks(2)
    inputs = [normal(2, 47, seed=r) for r in range(2)]  # two whole slices, three dimensions
    for _ in range(6):
        assert torch.equal(total(step(compressor, inputs, states)), torch.stack(inputs).sum(0))


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("bad_step", [1, 3, 6])
def test_a_nan_never_reaches_the_bases(samples: int, bad_step: int) -> None:
    """In a sampled, a compressed and a renewing step, on one rank, not rolled back: its destination sees it, all
    ranks go on in step, and later totals are finite."""
    world, n = 2, 320
    compressor, states = build("gradiveq", {**SMALL, "sample_steps": samples}), ranks(world)
    for number in range(14):
        inputs = [normal(world, n, seed=2 * number + r) for r in range(world)]
        if number == bad_step:
            inputs[1][:, 5] = math.nan  # as the FSDP hook marks every row
        seen = total(step(compressor, inputs, states))
        assert bool(torch.isfinite(seen).all()) == (number != bad_step)
    bases = [state.get("basis") for state in states]
    assert bases[0] is not None
    assert bases[1] is not None
    assert torch.equal(bases[0], bases[1])


def test_a_zero_gradient_stays_zero_unless_centred() -> None:
    """Padding and unused embeddings must not move; the mean of the paper's form would make them."""
    world, n = 2, 320
    for centre in (False, True):
        compressor, states = build("gradiveq", {**SMALL, "centre": centre}), ranks(world)
        for number in range(3):
            step(compressor, [normal(world, n, seed=number) + 1 for _ in range(world)], states)
        seen = total(step(compressor, [torch.zeros(world, n)] * world, states))
        assert torch.equal(seen, torch.zeros(world, n)) != centre
