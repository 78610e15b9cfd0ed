"""Each method against its paper's statement and an independent implementation."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.kernels import Residual
from tests.comm_compress.table import build, codec


def sample(rows: int, n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, n, generator=generator) ** 3


def round_trip(name: str, config: dict[str, object], rows: Tensor) -> Tensor:
    compressor = codec(name, config)
    return compressor.decode(compressor.encode(rows, State())).float()


# ---- casts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), [("bf16", ml_dtypes.bfloat16), ("fp16", np.float16)])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), exponent=st.integers(-30, 14))
def test_casts_round_like_ml_dtypes_and_numpy(name: str, dtype: type, seed: int, exponent: int) -> None:
    rows = sample(2, 200, seed) * 2.0**exponent
    with np.errstate(over="ignore"):
        expected = rows.numpy().astype(dtype).astype(np.float32)
    assert np.array_equal(round_trip(name, {}, rows).numpy(), expected)


@pytest.mark.parametrize(("name", "dtype"), [("bf16", ml_dtypes.bfloat16), ("fp16", np.float16)])
@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 300), seed=st.integers(0, 1000), exponent=st.integers(-40, 14), waits=st.booleans())
def test_casts_with_feedback_round_likewise_and_keep_the_rest(
    name: str, dtype: type, n: int, seed: int, exponent: int, waits: bool
) -> None:
    rows, old = sample(2, n, seed) * 2.0**exponent, sample(2, n, seed + 1) * 2.0 ** (exponent - 8)
    residual = Residual(old if waits else None, 1.0, torch.full(rows.shape, 7.0))
    encoded = codec(name, {}).encode_with_feedback(rows, residual, State())
    target = (rows + old if waits else rows).numpy()
    with np.errstate(over="ignore"):
        narrow = target.astype(dtype)
    assert np.array_equal(encoded["values"].view(torch.int16).numpy(), narrow.view(np.int16))
    assert np.array_equal(residual.new.numpy(), target - narrow.astype(np.float32))


def test_the_sum_of_casts_is_taken_in_float32() -> None:
    """256 + 1 is 256 in bfloat16; four ranks' ones on top of 256 must not vanish one by one."""
    inputs = [torch.full((5, 3), 256.0)] + [torch.ones(5, 3)] * 4
    for result in simulate.reduce_scatter(build("bf16", {}), inputs, [State() for _ in range(5)]):
        assert torch.equal(result.total, torch.full((3,), 260.0))


# ---- int8 -----------------------------------------------------------------------------------------------------


def int8_by_numpy(row: np.ndarray, block: int) -> np.ndarray:
    """The textbook, one block after the other."""
    out = np.zeros_like(row)
    for start in range(0, len(row), block):
        x = row[start : start + block]
        scale = np.float32(np.abs(x).max()) / np.float32(127)
        if scale > 0:
            out[start : start + block] = np.round(x * (np.float32(1) / scale)) * scale
    return out


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 600), block=st.sampled_from([8, 32, 256]), seed=st.integers(0, 100))
def test_block_int8_is_the_textbook_quantiser(n: int, block: int, seed: int) -> None:
    rows = sample(2, n, seed)
    got = round_trip("int8", {"block_size": block}, rows).numpy()
    for row, decoded in zip(rows.numpy(), got, strict=True):
        assert np.array_equal(decoded, int8_by_numpy(row, block))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 600), exponent=st.integers(-37, 37), seed=st.integers(0, 100))
def test_block_int8_errs_by_at_most_half_a_step(n: int, exponent: int, seed: int) -> None:
    rows = sample(1, n, seed) * 10.0**exponent
    rows = rows[:, torch.isfinite(rows[0])]
    error = (round_trip("int8", {"block_size": 64}, rows).double() - rows.double()).abs()
    for start in range(0, rows.shape[1], 64):
        peak = float(rows[0, start : start + 64].abs().max())
        assert float(error[0, start : start + 64].max()) <= peak / 254 * (1 + 1e-5) + 127 * torch.finfo().tiny


def test_one_nan_spoils_its_block_only() -> None:
    rows = sample(1, 96, 0)
    rows[0, 40] = math.inf
    got = round_trip("int8", {"block_size": 32}, rows)
    assert torch.isfinite(got[0, :32]).all()
    assert torch.isnan(got[0, 32:64]).all()
    assert torch.isfinite(got[0, 64:]).all()


@pytest.mark.parametrize("world", [2, 3, 8, 127])
def test_a_shared_scale_never_wraps(world: int) -> None:
    """The worst case: every rank sends the peak. int8 sums must not overflow, and the peak must come out right."""
    inputs = [torch.full((world, 5), 3.0)] * world
    for result in simulate.reduce_scatter(build("int8", {"scale": "global"}), inputs, [State() for _ in range(world)]):
        torch.testing.assert_close(result.total, torch.full((5,), 3.0 * world))


def test_a_shared_scale_is_the_largest_of_all_ranks() -> None:
    inputs = [torch.full((2, 4), 1.0), torch.full((2, 4), 100.0)]
    for result in simulate.reduce_scatter(build("int8", {"scale": "global"}), inputs, [State(), State()]):
        # one step is 100 / 63: a 1 on the other rank is rounded to it
        torch.testing.assert_close(result.total, torch.full((4,), 100.0 + 100 / 63))


# ---- top-k ----------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 500), ratio=st.floats(0.001, 1), seed=st.integers(0, 100))
def test_topk_keeps_the_largest_and_contracts(n: int, ratio: float, seed: int) -> None:
    rows = sample(3, n, seed)
    got = round_trip("topk", {"ratio": ratio, "error_feedback": False}, rows)
    k = min(n, max(1, round(ratio * n)))
    for x, y in zip(rows.numpy(), got.numpy(), strict=True):
        kept = np.flatnonzero(y)
        assert len(kept) == k
        assert np.array_equal(y[kept], x[kept])
        assert set(kept) == set(np.argsort(-np.abs(x), kind="stable")[:k])
        assert ((x - y) ** 2).sum() <= (1 - k / n) * (x**2).sum() + 1e-6


def test_topk_with_feedback_delivers_everything_in_the_end() -> None:
    """A constant gradient: after n / k steps each coordinate has been sent, and the mean delivered tends to it."""
    compressor, states = build("topk", {"k": 2}), simulate.states(1)
    gradient = torch.arange(1.0, 9.0).unsqueeze(0)
    delivered = torch.zeros(1, 8)
    steps = 400
    for _ in range(steps):
        states[0].begin()
        delivered += simulate.reduce_scatter(compressor, [gradient], states)[0].total
    torch.testing.assert_close(delivered / steps, gradient, rtol=0.1, atol=0)
