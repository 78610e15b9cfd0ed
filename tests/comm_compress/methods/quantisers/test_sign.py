"""One bit an element: 1-bit SGD's means, scaled signs, and the majority's vote."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from comm_compress.drive import simulate
from tests.comm_compress.quantised import few, heavy, round_trip
from tests.comm_compress.table import build


@few
@given(n=st.integers(1, 500), group=st.sampled_from([8, 56, 1024]), seed=st.integers(0, 100), shift=st.floats(-2, 2))
def test_onebit_sends_the_means_of_both_sides(n: int, group: int, seed: int, shift: float) -> None:
    rows = heavy(1, n, seed) + shift
    rows[0, ::7] = 0
    got = round_trip("onebit", {"group_size": group}, rows)[0].numpy()
    for start in range(0, n, group):
        x = rows[0, start : start + group].double().numpy()
        expected = np.empty(len(x))
        for side in (x >= 0, x < 0):
            if side.any():
                expected[side] = x[side].mean()
        np.testing.assert_array_equal(got[start : start + group], expected.astype(np.float32))


@few
@given(n=st.integers(1, 500), group=st.sampled_from([8, 56, 1024]), seed=st.integers(0, 100))
def test_scaled_signs_carry_the_mean_magnitude_and_contract_as_they_should(n: int, group: int, seed: int) -> None:
    rows = heavy(1, n, seed)
    got = round_trip("signsgd", {"group_size": group}, rows)[0].double()
    for start in range(0, n, group):
        x, y = rows[0, start : start + group].double(), got[start : start + group]
        torch.testing.assert_close(y, x.abs().mean() * x.sign(), rtol=1e-6, atol=0)
        kept = float(x.abs().sum() ** 2 / x.numel())
        assert float((x - y).square().sum()) == pytest.approx(float(x.square().sum()) - kept, rel=1e-4, abs=1e-9)


def majority(inputs: list[Tensor], group: int = 64) -> Tensor:
    compressor = build("signsgd", {"mode": "majority", "group_size": group})
    results = simulate.reduce_scatter(compressor, inputs, simulate.states(len(inputs), "unit"))
    return torch.stack([r.total for r in results]) / len(inputs)


@few
@given(world=st.integers(1, 5), n=st.integers(1, 200), seed=st.integers(0, 100))
def test_the_mean_of_a_vote_is_the_sign_of_most_with_ties_at_zero(world: int, n: int, seed: int) -> None:
    inputs = [heavy(world, n, 10 * seed + rank) for rank in range(world)]
    assert torch.equal(majority(inputs), torch.stack([x.sign() for x in inputs]).sum(0).sign())


def test_who_has_nothing_abstains() -> None:
    """Two ranks without a gradient do not outvote the third, and where none has one nothing moves."""
    inputs = [torch.zeros(3, 128) for _ in range(3)]
    inputs[1][:, :64] = -1e-44
    voted = majority(inputs)
    assert (voted[:, :64] == -1).all()
    assert (voted[:, 64:] == 0).all()


def test_zeros_among_others_vote_by_private_coins() -> None:
    """One rank's zeros give both signs alike; two ranks' coins agree half the time (five standard deviations)."""
    n = 40_000
    inputs = [torch.zeros(2, n) for _ in range(2)]
    for x in inputs:
        x[:, ::50] = 1
    zeros = torch.arange(n) % 50 != 0
    voted, count = majority(inputs)[0][zeros], int(zeros.sum())
    assert abs(float(voted.mean())) < 5 * math.sqrt(0.5 / count)
    assert abs(float((voted == 0).float().mean()) - 0.5) < 5 * 0.5 / math.sqrt(count)


def test_a_vote_with_a_nan_is_void_in_its_group_only() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        inputs = [heavy(3, 192, rank) for rank in range(3)]
        inputs[2][0, 70] = bad
        voted = majority(inputs)
        assert voted[0, 64:128].isnan().all()
        assert voted[0, :64].isfinite().all()
        assert voted[0, 128:].isfinite().all()
        assert voted[1:].isfinite().all()
