"""What is done to factors beside products: the kernels give the definition's bits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from comm_compress.kernels.projections.factors import cpu as factors_cpu, reference as factors_reference
from comm_compress.kernels.projections.factors.lines import Lines, LineShape

# tall, wide, and one of which no line goes whole; beside other columns
SHAPES = (LineShape(3, 20, 7, 7, 1, 2, 3), LineShape(150, 30, 9, 1, 30, 4, 2), LineShape(430, 5, 5, 5, 1, 1, 0))
LINES, N = Lines(SHAPES), 460
WHOLE = [*range(40, 61), *range(181, 199)]  # where whole lines lie in values


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_same_bits(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


def test_powers_bring_every_length_between_a_half_and_one() -> None:
    """Of all sizes there are, denormal ones as far as a byte reaches."""
    powers = torch.exp2(torch.arange(-149.0, 128.0, dtype=torch.float64)).float()
    lengths = torch.cat([powers, 1.5 * powers[:-1], torch.tensor([0.0, math.inf, math.nan, 3.4e38])]).view(1, -1)
    for ours, theirs in zip(factors_cpu.powers_of(lengths), factors_reference.powers_of(lengths), strict=True):
        assert_same_bits(ours, theirs)
    exponents, weights = factors_cpu.powers_of(lengths)
    scaled = (lengths.double() * weights.double())[0, 23 : 2 * powers.numel() - 1]
    normal = scaled[
        (exponents[0, 23 : 2 * powers.numel() - 1] > -126) & (exponents[0, 23 : 2 * powers.numel() - 1] < 127)
    ]
    assert normal.numel() > 400
    assert bool(((normal >= 0.5) & (normal < 1)).all())


@pytest.mark.parametrize("special", [None, 0.0, math.nan, math.inf])
def test_weighing_and_scaling_are_the_references(special: float | None) -> None:
    """Of factors far apart in size; of one that is zero or not finite nothing is made that was not there."""
    factors = random(3, 4, 50) * torch.tensor([1e-30, 1.0, 1e30])[:, None, None]
    weights = torch.exp2(random(3, 70).round())[:, 10:60]  # columns of wider rows
    if special is not None:
        factors[1] = special
    found = []
    for kernels in (factors_cpu, factors_reference):
        weighed, scaled = factors.clone(), factors.clone()
        kernels.weigh(weighed, weights)
        kernels.scale(scaled)
        found.append((weighed, scaled))
    for ours, theirs in zip(*found, strict=True):
        assert_same_bits(ours, theirs)
    peaks = found[0][1].abs().amax((1, 2))
    assert torch.equal(peaks[::2], torch.ones(2))


def test_whole_lines_are_taken_from_their_places_and_weigh_nothing_then() -> None:
    rows, index = random(2, N), torch.tensor([[0, 5, 19, 1, 29], [2, 3, 4, 0, 7]])
    before = torch.exp2(random(2, 55).round())
    found = []
    for kernels in (factors_cpu, factors_reference):
        weights = before.clone()
        values, places = kernels.take(rows, LINES, index, weights)
        found.append((values[:, WHOLE], places, weights))
    for ours, theirs in zip(*found, strict=True):
        assert_same_bits(ours, theirs)
    whole, places, weights = found[0]
    for kernels in (factors_cpu, factors_reference):
        assert torch.equal(places, kernels.places(LINES, index))
    for r in range(2):
        tall, wide = rows[r, 3:143].view(20, 7), rows[r, 150:420].view(9, 30).t()
        lines = [
            m[k] * before[r, first + k]
            for m, first, ks in ((tall, 0, index[r, :3]), (wide, 20, index[r, 3:]))
            for k in ks
        ]
        assert torch.equal(whole[r], torch.cat(lines))
        unweighed = [m[k] for m, ks in ((tall, index[r, :3]), (wide, index[r, 3:])) for k in ks]
        assert torch.equal(rows[r, places[r]], torch.cat(unweighed))
        zeros = {*index[r, :3].tolist(), *(20 + index[r, 3:]).tolist()}
        assert {*torch.nonzero(weights[r] == 0).flatten().tolist()} == zeros


def test_spreading_undoes_what_lines_were_divided_by() -> None:
    values, index = random(2, LINES.num_values), torch.tensor([[0, 5, 19, 1, 29], [2, 3, 4, 0, 7]])
    exponents = torch.randint(-126, 128, (2, 55), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    before = values.clone()
    ours, theirs = (k.spread(values, LINES, index, exponents) for k in (factors_cpu, factors_reference))
    assert_same_bits(ours, theirs)
    assert torch.equal(values, before)  # they may be a message's own
    assert ours[1, 4] == values[1, 4] * 2.0 ** float(exponents[1, 4])
