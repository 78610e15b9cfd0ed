"""QSGD and TernGrad: the mean, the variance and the levels of their formulas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from comm_compress.core.state import State
from tests.comm_compress.quantised import few, heavy, round_trip
from tests.comm_compress.table import codec


def decodings(name: str, config: dict[str, Any], rows: Tensor, steps: int) -> Iterator[Tensor]:
    """The decoded rows of ``steps`` collectives of one unit."""
    compressor, state = codec(name, config), State("unit")
    for _ in range(steps):
        state.begin()
        yield compressor.decode(compressor.encode(rows, state)).double()


def variance_of_rounding(x: Tensor, step: Tensor | float) -> Tensor:
    """Of stochastic rounding to multiples of ``step``: step^2 f (1 - f)."""
    fraction = (x / step).abs() % 1
    return step**2 * fraction * (1 - fraction)


@pytest.mark.parametrize(
    ("config", "p"),
    [
        ({"bits": 2, "bucket_size": 64}, math.inf),
        ({"bits": 4, "bucket_size": 64}, math.inf),
        ({"bits": 4, "bucket_size": 64, "norm": "l2"}, 2),
        ({"bits": 8, "levels": 20, "bucket_size": 64, "norm": "l2"}, 2),
        ({"bits": 1, "bucket_size": 64}, math.inf),
        ({"bits": 1, "bucket_size": 64, "norm": "l2"}, 2),
    ],
)
def test_qsgd_has_the_mean_and_the_variance_of_its_formula(config: dict[str, Any], p: float) -> None:
    """Every element's mean: z below 5.5 (fails for one seed in 10^5). The total squared error: within 5 deviations."""
    x, steps = heavy(1, 256, 7).double(), 1000
    norms = torch.linalg.vector_norm(x.view(-1, 64), p, dim=1).repeat_interleave(64)
    levels = config.get("levels") or 2 ** (config["bits"] - 1) - 1
    variance = variance_of_rounding(x[0], norms / levels) if levels else norms**2 - x[0] ** 2
    decoded = torch.cat(list(decodings("qsgd", config, x.float(), steps)))
    z = (decoded.mean(0) - x[0]) / (variance / steps).sqrt().clamp(min=1e-6)
    assert float(z.abs().max()) < 5.5
    errors = (decoded - x).square().sum(1)
    assert abs(float(errors.mean() - variance.sum())) < 5 * float(errors.std()) / math.sqrt(steps)
    if p == 2 and levels:
        bound = min(64 / levels**2, math.sqrt(64) / levels)
        assert float(variance.sum()) <= bound * float(x.square().sum())


@few
@given(bits=st.integers(1, 8), norm=st.sampled_from(["max", "l2"]), n=st.integers(1, 300), seed=st.integers(0, 100))
def test_qsgd_sends_neighbouring_levels_of_its_norm(bits: int, norm: str, n: int, seed: int) -> None:
    rows = heavy(1, n, seed)
    got = round_trip("qsgd", {"bits": bits, "norm": norm, "bucket_size": 104}, rows)[0].double()
    for start in range(0, n, 104):
        x, y = rows[0, start : start + 104].double(), got[start : start + 104]
        size = float(torch.linalg.vector_norm(x, 2 if norm == "l2" else math.inf))
        if bits == 1:
            torch.testing.assert_close(y.abs(), torch.full_like(y, size), rtol=1e-6, atol=0)
            continue
        step = size / (2 ** (bits - 1) - 1)
        levels = y / step
        torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-4)
        assert ((levels - x / step).abs() < 1 + 1e-4).all()
        assert (y * x >= 0).all()


def test_one_bit_of_qsgd_leaves_zero_buckets_alone() -> None:
    rows = torch.zeros(1, 96)
    rows[0, 70] = -3.0
    got = round_trip("qsgd", {"bits": 1, "bucket_size": 48}, rows)
    assert (got[0, :48] == 0).all()
    assert set(got[0, 48:].tolist()) == {3.0, -3.0}
    assert float(got[0, 70]) == -3.0


@pytest.mark.parametrize("packing", ["2bit", "base3"])
@pytest.mark.parametrize("clip", [0.0, 1.5, 2.5])
def test_terngrad_is_unbiased_but_for_its_clip(packing: str, clip: float) -> None:
    x, steps = heavy(1, 256, 3).double(), 1000
    config = {"packing": packing, "clip_sigmas": clip, "bucket_size": 64}
    assert codec("terngrad", config).traits.unbiased == (clip == 0)
    buckets = x.view(-1, 64)
    scaler = buckets.abs().amax(1)
    if clip:
        scaler = torch.minimum(scaler, clip * buckets.square().mean(1).sqrt())
    scaler = scaler.repeat_interleave(64)
    decoded = torch.cat(list(decodings("terngrad", config, x.float(), steps)))
    multiples = decoded / scaler
    torch.testing.assert_close(multiples, multiples.round().clamp(-1, 1), rtol=0, atol=1e-6)
    clipped = x[0].clamp(-scaler, scaler)
    deviation = (clipped.abs() * (scaler - clipped.abs()) / steps).sqrt()
    assert float(((decoded.mean(0) - clipped).abs() / deviation.clamp(min=1e-6)).max()) < 5.5


def test_terngrad_keeps_a_bucket_of_equal_numbers() -> None:
    rows = torch.full((1, 64), -0.3)
    torch.testing.assert_close(round_trip("terngrad", {"clip_sigmas": 0.5}, rows), rows / 2)
    torch.testing.assert_close(round_trip("terngrad", {}, rows), rows)
