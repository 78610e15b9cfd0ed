"""Top-k: the energy it keeps, its contraction, chunks, and its bytes by kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from comm_compress.methods.shared.index_codes import CODES
from tests.comm_compress.methods.sparsifiers.samples import normal, round_trip, state, top_by_numpy
from tests.comm_compress.table import codec


@pytest.mark.parametrize(("kind", "energy"), [("normal", 0.085), ("laplace", 0.16)])
def test_energy_kept_at_one_percent(kind: str, energy: float) -> None:
    """Closed form: E[x^2; |x| > t] / E[x^2] at the 99 % quantile t of |x|: 8.46 % and 16.2 %."""
    x = normal(1, 1 << 21)
    if kind == "laplace":
        u = torch.rand(1, 1 << 21, generator=torch.Generator().manual_seed(0)) - 0.5
        x = -u.sign() * torch.log1p(-2 * u.abs())
    kept = round_trip(codec("topk", {"ratio": 0.01}), x)
    assert float((kept**2).sum() / (x**2).sum()) == pytest.approx(energy, rel=0.02)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 500),
    ratio=st.floats(0.01, 1),
    seed=st.integers(0, 100),
    config=st.sampled_from([{}, {"selection": "chunked", "chunk_size": 64}, {"indices": "rice"}]),
)
def test_topk_contracts(n: int, ratio: float, seed: int, config: dict[str, Any]) -> None:
    compressor = codec("topk", {"ratio": ratio, **config})
    rows = normal(2, n, seed) ** 3
    left = (rows - round_trip(compressor, rows)).double()
    if config.get("selection") == "chunked":  # the bound holds in every chunk, with its own k / n
        for start in range(0, n, 64):
            part = slice(start, min(start + 64, n))
            size = part.stop - start
            k = min(size, max(1, round(ratio * size)))
            assert (left[:, part] ** 2).sum() <= (1 - k / size) * (rows[:, part].double() ** 2).sum() + 1e-6
    else:
        k = min(n, max(1, round(ratio * n)))
        assert ((left**2).sum(1) <= (1 - k / n) * (rows.double() ** 2).sum(1) + 1e-6).all()


@pytest.mark.parametrize("indices", ["int32", "packed", "elias_fano", "rice", "bitmap", "best"])
@pytest.mark.parametrize("n", [1, 63, 64, 200, 1000])
def test_chunks_are_selected_one_by_one(indices: str, n: int) -> None:
    rows = normal(2, n)
    config = {"selection": "chunked", "chunk_size": 64, "k": 3, "indices": indices}
    got = round_trip(codec("topk", config), rows)
    for row, decoded in zip(rows.numpy(), got.numpy(), strict=True):
        expected = np.zeros_like(row)
        for start in range(0, n, 64):
            places = start + top_by_numpy(row[start : start + 64], min(3, len(row[start : start + 64])))
            expected[places] = row[places]
        assert np.array_equal(decoded, expected)


def test_topk_bytes_by_kind() -> None:
    n, k = 10_000, 100
    plain = codec("topk", {"indices": "packed"}).encode(normal(1, n), state()).byte_count(0)
    assert (plain.values, plain.indices) == (4 * k, -(-k * 14 // 8))
    coded = codec("topk", {"values": {"method": "int8", "block_size": 56}}).encode(normal(1, n), state()).byte_count(0)
    assert (coded.values, coded.indices) == (k, CODES["elias_fano"].size(n, k))
    assert 2 * 4 <= coded.metadata <= 2 * 4 + 3  # two scales, padding
    ragged = codec("topk", {"indices": "rice"}).encode(normal(1, n), state()).byte_count(0)
    assert (ragged.values, ragged.metadata) == (4 * k, 8)
    assert ragged.indices < coded.indices


def test_the_default_takes_two_fifths_of_a_bit_an_element() -> None:
    """(32 + 8.55) / 100 bits: 79 times less than float32; with int8 values 192 times."""
    n = 1 << 20
    assert 8 * (codec("topk", {}).wire_bytes(n) or 0) / n == pytest.approx(0.4055, rel=0.001)
    assert 8 * (codec("topk", {"values": "int8"}).wire_bytes(n) or 0) / n == pytest.approx(0.1668, rel=0.002)
