"""The quantisers for activations, `taco` and `tahquant`: their formulas, element by element, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.linalg import hadamard as sylvester
from torch import Tensor

import comm_compress as cc
from comm_compress.core.encoded import Encoded
from comm_compress.core.state import State
from comm_compress.methods.quantisers.tahquant import HIGH, PIVOT, ROTATED
from comm_compress.methods.shared.tiles import hadamard
from tests.comm_compress.table import codec


def heavy(rows: int, n: int, seed: int, power: int = 3) -> Tensor:
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(seed)) ** power


def encoded(name: str, config: dict[str, Any], rows: Tensor) -> Encoded:
    state = State("unit")
    state.begin()
    return codec(name, config).encode(rows, state)


def nmse(name: str, config: dict[str, Any], rows: Tensor) -> float:
    loss = codec(name, config).decode(encoded(name, config, rows)).double() - rows.double()
    return float(loss.square().sum() / rows.double().square().sum())


@pytest.mark.parametrize("size", [2, 8, 64, 1024])
def test_transform_is_sylvesters_matrix_and_its_own_inverse(size: int) -> None:
    x = heavy(3, 4 * size, size).view(3, 4, size)
    expected = x.double().numpy() @ sylvester(size) / math.sqrt(size)
    np.testing.assert_allclose(hadamard(x).numpy(), expected, atol=2e-6 * float(x.abs().max()) * math.sqrt(size))
    torch.testing.assert_close(hadamard(hadamard(x)), x, atol=1e-5 * float(x.abs().max()), rtol=0)
    assert torch.isfinite(hadamard(torch.full((1, 64), 1e37))).all()


# ---- taco -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("format_", "largest", "error"), [("e4m3", 448, 2**-4), ("e5m2", 57344, 2**-3)])
def test_taco_sends_both_scales_and_the_nearest_float_of_the_transformed_group(
    format_: str, largest: int, error: float
) -> None:
    size, n = 64, 1000
    for scale in (1e-6, 1.0, 1e5):
        rows = heavy(2, n, 1) * scale
        sent = encoded("taco", {"format": format_, "group_size": size}, rows)
        groups = torch.nn.functional.pad(rows, (0, -n % size)).double().view(2, -1, size)
        counts = torch.full((groups.shape[1],), float(size), dtype=torch.float64)
        counts[-1] = n - size * (groups.shape[1] - 1)
        adaptive = (largest / (groups.square().sum(-1) / counts + 1e-6).sqrt()).clamp(1e-3, 1e3)
        torch.testing.assert_close(sent["adaptive"].double(), adaptive, rtol=1e-5, atol=0)
        turned = adaptive.unsqueeze(-1) * groups @ torch.from_numpy(sylvester(size)).double() / math.sqrt(size)
        torch.testing.assert_close(sent["scales"].double(), turned.abs().amax(-1) / largest, rtol=1e-5, atol=0)
        dtype = torch.float8_e4m3fn if format_ == "e4m3" else torch.float8_e5m2
        values = sent["codes"].view(dtype).double().view(turned.shape) * sent["scales"].double().unsqueeze(-1)
        least = sent["scales"].double().unsqueeze(-1) * 2**-9
        assert bool(((values - turned).abs() <= turned.abs() * error * 1.001 + least).all())


def test_taco_costs_what_fp8_costs_on_gaussian_data_whatever_the_distribution() -> None:
    for power in (1, 3, 5):
        assert nmse("taco", {}, heavy(1, 1 << 18, power, power)) == pytest.approx(7e-4, rel=0.08), power
    assert nmse("taco", {"format": "e5m2"}, heavy(1, 1 << 18, 2)) == pytest.approx(0.0027, rel=0.08)


def test_tacos_adaptive_scale_cancels() -> None:
    rows = heavy(1, 4096, 5)
    method = codec("taco", {})
    expected = method.decode(encoded("taco", {}, rows))
    for factor in (2.0**-20, 2.0**13):  # beyond the limits of the adaptive scale
        scaled = method.decode(encoded("taco", {}, rows * factor)) / factor
        off = (scaled - expected).abs() > 1e-5 * float(rows.abs().max())
        assert float(off.double().mean()) < 0.2, "only groups where a code rounds the other way may differ"
        assert float((scaled - rows).norm()) == pytest.approx(float((expected - rows).norm()), rel=0.05)


# ---- tahquant ---------------------------------------------------------------------------------------------------


def _grid_of(sent: Encoded) -> tuple[Tensor, Tensor, Tensor]:
    return sent["least"].double(), sent["steps"].double(), sent["flags"]


def _turned(rows: Tensor, flags: Tensor, size: int) -> Tensor:
    """The tiles as the paper's formulas have them, transformed where the flags say so."""
    n = rows.shape[1]
    padded = torch.cat([rows, rows[:, -1:].expand(-1, -n % size)], 1).double()
    tiles = padded.view(rows.shape[0], -1, size).clone()
    for place in (flags & ROTATED > 0).nonzero().tolist():
        tile, pivot = tiles[tuple(place)], int(flags[tuple(place)] & PIVOT)
        assert float(tile[pivot].abs()) == float(tile.abs().max())
        tile[[0, pivot]] = tile[[pivot, 0]]
        tiles[tuple(place)] = tile @ torch.from_numpy(sylvester(size)).double() / math.sqrt(size)
    return tiles


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 700),
    size=st.sampled_from([8, 32, 64]),
    share=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    scales=st.sampled_from(["bf16", "fp32"]),
    scale=st.sampled_from([1e-9, 1.0, 1e20]),
)
def test_tahquant_keeps_the_papers_choices_and_half_a_step(
    seed: int, n: int, size: int, share: float, scales: str, scale: float
) -> None:
    config = {"tile_size": size, "high_share": share, "scales": scales}
    rows = (heavy(2, n, seed) + 0.2) * scale
    sent = encoded("tahquant", config, rows)
    least, steps, flags = _grid_of(sent)
    high = flags & HIGH > 0
    plain = _turned(rows, torch.zeros_like(flags), size)
    assert high.sum(1).tolist() == [round(share * plain.shape[1])] * 2

    sizes = plain.abs().sort(-1, descending=True).values
    assert torch.equal(flags & ROTATED > 0, sizes[..., 0] >= 2 * sizes[..., 1]), "tiles with one outlier, and no others"
    p = plain.abs() / plain.abs().sum(-1, keepdim=True)
    entropy = -(p * torch.log(p + 1e-30)).sum(-1)
    for row in range(2):
        if bool(high[row].any()) and not bool(high[row].all()):
            assert float(entropy[row][high[row]].min()) >= float(entropy[row][~high[row]].max()) - 1e-4

    turned = _turned(rows, flags, size)
    method = codec("tahquant", config)
    got = _turned(method.decode(sent), flags & ~ROTATED, size)
    error = (got - plain)[:, : n // size]  # whole tiles
    bound = (steps / 2 + 0.005 * (turned.amax(-1) - least) + 1e-5 * turned.abs().amax(-1))[:, : n // size]
    rotated = (flags & ROTATED > 0)[:, : n // size]
    worst = torch.where(rotated, error.norm(dim=-1) / math.sqrt(size), error.abs().amax(-1))
    assert bool((worst <= bound).all())
    assert bool((least <= turned.amin(-1) + 1e-6 * turned.abs().amax(-1)).all())


def test_tahquants_transform_takes_an_outliers_cost_away() -> None:
    rows = torch.randn(1, 64 * 256, generator=torch.Generator().manual_seed(1))
    rows[:, 17::64] *= 60  # one in every tile
    rest = torch.ones(64, dtype=torch.bool)
    rest[17] = False

    def loss(config: dict[str, Any]) -> float:
        got = codec("tahquant", config).decode(encoded("tahquant", config, rows))
        return float((got - rows).view(-1, 64)[:, rest].square().mean())

    assert loss({}) < 0.1 * loss({"outlier_ratio": None})


def test_tahquants_entropy_gives_bits_to_the_even_tiles() -> None:
    rows = torch.zeros(1, 128)
    rows[:, :64], rows[:, 64] = torch.linspace(1, 1.5, 64), 1.0
    assert (encoded("tahquant", {"high_share": 0.5}, rows)["flags"] >= HIGH).tolist() == [[True, False]]


def test_tahquant_takes_four_point_four_bits() -> None:
    n = 64 * 1000
    bits = 8 * (cc.make("tahquant").wire_bytes(n) or 0) / n  # type: ignore[union-attr]
    assert bits == pytest.approx(0.8 * 4 + 0.2 * 3 + 40 / 64)
    assert nmse("tahquant", {"high_share": 1.0}, heavy(1, n, 3, 1)) < nmse("tahquant", {}, heavy(1, n, 3, 1)) < 0.016


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("taco group_size=100", "group_size = 100: must be a power of two between 32 and 1024"),
        ("tahquant tile_size=128", "tile_size = 128: must be a power of two between 8 and 64"),
        ("tahquant high_bits=2", "high_bits = 2: must be from low_bits, 3, to 8"),
        ("tahquant high_share=1.5", "high_share = 1.5: must be between 0 and 1"),
        ("tahquant outlier_ratio=0.5", "outlier_ratio = 0.5: must be null, or at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(label: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cc.make(label)
