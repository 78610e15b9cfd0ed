"""Natural compression: powers of two, rounded as numpy rounds or drawn with the right probability."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor

from tests.comm_compress.quantised import MILLION, few, nmse, round_trip, rows_with_specials, some


@few
@given(rows=rows_with_specials())
def test_nearest_powers_of_two_are_numpys(rows: Tensor) -> None:
    rows = rows[:, rows.isfinite().all(0)]
    x = rows.double().numpy()
    fraction, exponent = np.frexp(np.abs(x))  # fraction in [0.5, 1): 0.75 is halfway to the next power
    expected = np.sign(x) * np.minimum(np.ldexp(1.0, exponent - (fraction < 0.75)), 2.0**127)
    small = np.abs(x) < 2.0**-126
    expected[small] = np.where(np.abs(x) >= 2.0**-127, np.sign(x) * 2.0**-126, 0)[small]
    assert np.array_equal(round_trip("nc", {"rounding": "nearest"}, rows).numpy(), expected)


@some
@given(rows=rows_with_specials(), bits=st.sampled_from([8, 9]))
def test_powers_of_two_are_neighbours(rows: Tensor, bits: int) -> None:
    """Every finite number becomes the power of two below or above it; 2^127 at the top, 0 or 2^-126 at the bottom."""
    rows = rows[:, rows.isfinite().all(0)].double()
    got = round_trip("nc", {"bits": bits}, rows.float()).double()
    floor = torch.full((rows.shape[0], 1), 2.0**-126, dtype=torch.float64)
    if bits == 8 and rows.numel():
        top = torch.frexp(rows.abs().amax(1, keepdim=True)).exponent.clamp(max=127)
        floor = torch.maximum(floor, 2.0 ** (top - 126).double())
    low = 2.0 ** (torch.frexp(rows.abs()).exponent - 1).double()
    high = (2 * low).clamp(max=2.0**127)
    exact = rows.abs() == low
    down, up = (
        torch.where(rows.abs() < floor, 0, low),
        torch.where(rows.abs() < floor, floor, torch.where(exact, low, high)),
    )
    assert ((got.abs() == down) | (got.abs() == up)).all()
    assert (got * rows >= 0).all()


@pytest.mark.parametrize(
    ("bits", "largest", "value", "low", "high"),
    [
        (9, 1.0, 1.25, 1.0, 2.0),
        (9, 1.0, -5.5, -4.0, -8.0),
        (9, 1.0, 2.0**-128, 0.0, 2.0**-126),
        (9, 1.0, 3 * 2.0**-149, 0.0, 2.0**-126),
        (8, 1.0, 1.25, 1.0, 2.0),
        (8, 2.0**100, 0.3 * 2.0**-25, 0.0, 2.0**-25),  # below the window: its top is 2^101
        (8, 2.0**100, -1.5 * 2.0**-25, -(2.0**-25), -(2.0**-24)),  # the first octave inside
        (8, 1e-39, 2.0**-130, 0.0, 2.0**-126),
    ],
)
def test_powers_of_two_are_drawn_with_the_right_probability(
    bits: int, largest: float, value: float, low: float, high: float
) -> None:
    """200,000 draws: the share of the upper neighbour within five standard deviations."""
    rows = torch.full((1, 200_000), value)
    rows[0, ::1000] = largest  # in every window
    got = round_trip("nc", {"bits": bits}, rows)[rows == value].double()
    n = got.numel()
    assert set(got.unique().tolist()) <= {low, high}
    p = (value - low) / (high - low)
    assert abs(float((got == high).double().mean()) - p) < 5 * math.sqrt(max(p * (1 - p), 1 / n) / n)


def test_the_window_hangs_from_each_blocks_largest_element() -> None:
    """Another block's, or another row's, does not matter; nor whether it is finite."""
    blocks = torch.tensor([[2.0**120, 1.0], [1.0, 2.0**-60], [2.0**-100, 2.0**-126], [3.4e38, -2.0]])
    rows = F.pad(blocks, (0, 2046)).view(2, 4096)
    expected = torch.where(rows > 3e38, 2.0**127, rows)
    assert torch.equal(round_trip("nc", {"bits": 8}, rows), expected)
    rows[1, 7] = torch.inf
    got = round_trip("nc", {"bits": 8}, rows)
    assert got[1, :2048].isnan().all()
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1, 2048:], expected[1, 2048:])


@pytest.mark.parametrize("bits", [8, 9])
def test_powers_of_two_vary_by_an_eighth_at_most(bits: int) -> None:
    """The worst case: at 4/3 of a power, E (C(x) - x)^2 = x^2 / 8 exactly."""
    rows = torch.full((1, MILLION), 4 / 3)
    assert nmse("nc", {"bits": bits}, rows) == pytest.approx(1 / 8, rel=0.01)
