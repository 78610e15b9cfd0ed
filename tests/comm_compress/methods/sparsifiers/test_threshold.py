"""Thresholds, fixed or of a quantile: a mask, and the share that was asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.comm_compress.methods.sparsifiers.samples import normal, round_trip, state
from tests.comm_compress.table import codec


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 500), threshold=st.floats(1e-3, 5), seed=st.integers(0, 100))
def test_a_fixed_threshold_is_a_mask(n: int, threshold: float, seed: int) -> None:
    rows = normal(3, n, seed)
    got = round_trip(codec("thresholdv", {"threshold": threshold}), rows)
    assert torch.equal(got, rows * (rows.abs() >= float(np.float32(threshold))))
    assert float(((rows - got).double() ** 2).sum()) <= 3 * n * threshold**2


def test_nothing_above_the_threshold_is_an_empty_row() -> None:
    compressor = codec("thresholdv", {"threshold": 10.0})
    rows = -normal(3, 100).abs()  # all negative: the threshold is of magnitudes
    rows[1, 5] = -20
    encoded = compressor.encode(rows, state(3))
    assert encoded.lengths is not None
    assert encoded.lengths[0] == encoded.lengths[2] == 0
    assert encoded.lengths[1] > 0
    assert torch.equal(compressor.decode(encoded).nonzero(), torch.tensor([[1, 5]]))


def test_nan_is_above_every_threshold_and_zero_below() -> None:
    rows = torch.zeros(1, 50)
    rows[0, 9] = math.nan
    for config in ({"threshold": 3e38}, {"quantile": 0.0}, {}):
        encoded = codec("thresholdv", config).encode(rows, state())
        assert codec("thresholdv", config).decode(encoded).isnan().nonzero().tolist() == [[0, 9]]
        assert encoded.byte_count(0).values == 4, "one value, no zeros"


@pytest.mark.parametrize("quantile", [0.9, 0.99, 0.999])
@pytest.mark.parametrize("n", [5000, 400_000])
def test_a_quantile_sends_its_share(quantile: float, n: int) -> None:
    """Exactly where the row is its own sample; else within five standard deviations of the sample's count."""
    rows = normal(1, n) ** 3
    sent = int((round_trip(codec("thresholdv", {"quantile": quantile}), rows) != 0).sum())
    expected = (1 - quantile) * n
    if n <= 1 << 14:
        assert sent == round(expected)
    else:
        assert abs(sent / expected - 1) < 5 / math.sqrt((1 - quantile) * (1 << 14))


def test_a_matrix_with_one_large_column_does_not_mislead_the_sample() -> None:
    """Every 24th or 25th element of 400,000 would fall into few columns of a matrix that is 100 wide."""
    matrix = normal(4000, 100)
    matrix[:, 0] *= 100
    sent = (round_trip(codec("thresholdv", {"quantile": 0.99}), matrix.view(1, -1)) != 0).sum()
    assert 0.6 < float(sent) / 4000 < 1.5
