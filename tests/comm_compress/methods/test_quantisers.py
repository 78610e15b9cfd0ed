"""Quantisers of every element: oracles, published errors, unbiasedness, bytes; and their kernels, twin against twin."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor

import comm_compress as cc
from comm_compress import kernels
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.kernels import Residual
from comm_compress.kernels.cpu import (
    bits as bits_cpu,
    casts as casts_cpu,
    onebit as onebit_cpu,
    powers as powers_cpu,
    trits as trits_cpu,
    votes as votes_cpu,
)
from comm_compress.kernels.cpu.vectors import hadamard as hadamard_cpu
from comm_compress.kernels.reference import (
    bits as bits_reference,
    blocks as blocks_reference,
    casts as casts_reference,
    onebit as onebit_reference,
    powers as powers_reference,
    random as random_reference,
    trits as trits_reference,
    votes as votes_reference,
)
from comm_compress.wrappers.error_feedback import ErrorFeedback
from tests.comm_compress.table import build, codec

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-40, 1.2e-38, 3e-38, 1.8e38, 3.4e38, -3.4e38]
KEYS = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
few, some = settings(max_examples=25, deadline=None), settings(max_examples=40, deadline=None)


def normal(rows: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(seed))


def heavy(rows: int, n: int, seed: int) -> Tensor:
    return normal(rows, n, seed) ** 3


def begun(rank: int = 0) -> State:
    state = State("unit", rank)
    state.begin()
    return state


def round_trip(name: str, config: dict[str, Any], rows: Tensor) -> Tensor:
    compressor = codec(name, config)
    return compressor.decode(compressor.encode(rows, begun())).float()


def decodings(name: str, config: dict[str, Any], rows: Tensor, steps: int) -> Iterator[Tensor]:
    """The decoded rows of ``steps`` collectives of one unit."""
    compressor, state = codec(name, config), State("unit")
    for _ in range(steps):
        state.begin()
        yield compressor.decode(compressor.encode(rows, state)).double()


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, any NaN like any other."""
    a, b = a.clone(), b.clone()
    a[a.isnan()], b[b.isnan()] = -12345.0, -12345.0
    return a.dtype == b.dtype and torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())


@st.composite
def rows_with_specials(draw: st.DrawFn, most: int = 300) -> Tensor:
    """Up to three rows of any scale, with a few numbers that are hard to treat right."""
    num_rows, n = draw(st.integers(1, 3)), draw(st.integers(0, most))
    rows = normal(num_rows, n, draw(st.integers(0, 1000))) * 10.0 ** draw(st.integers(-44, 38))
    for value, place in draw(st.lists(st.tuples(st.sampled_from(SPECIAL), st.floats(0, 0.999)), max_size=4)):
        if rows.numel():
            rows.view(-1)[int(place * rows.numel())] = value
    return rows


# ---- kernels: every twin gives the reference's bits -------------------------------------------------------------


@some
@given(rows=rows_with_specials(200))
def test_rotation_is_the_references_and_the_matrix(rows: Tensor) -> None:
    got = rows.clone()
    for row in got:
        hadamard_cpu.rotate(row.numpy())
    assert same(got, blocks_reference.rotated(rows))
    matrix = functools.reduce(np.kron, [np.array([[1.0, 1.0], [1.0, -1.0]])] * 5) / math.sqrt(32)
    whole = rows.shape[1] // 32 * 32
    assert same(got[:, whole:], rows[:, whole:])
    for start in range(0, whole, 32):
        x = rows[:, start : start + 32].double().numpy()
        if np.isfinite(x).all() and np.abs(x).max(initial=0) < 1e37:
            np.testing.assert_allclose(got[:, start : start + 32], x @ matrix, atol=1e-6 * np.abs(x).max() + 1e-43)


NARROW_ROWS = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
GROUPS = st.sampled_from([8, 56, 256, 1024, 2080])


def residual_for(rows: Tensor, waiting: torch.dtype | None, decay: float) -> Residual:
    """One that holds a hundredth of other numbers, or nothing yet."""
    old = None if waiting is None else (rows.float().flip(1) * 0.01).to(waiting)
    return Residual(old, decay, torch.full(rows.shape, 7.0))


WAITING = st.sampled_from([None, torch.float32, torch.bfloat16])
DECAYS = st.sampled_from([1.0, 0.9])


@some
@given(
    rows=rows_with_specials(3000),
    dtype=NARROW_ROWS,
    group=GROUPS,
    fed_back=st.booleans(),
    waiting=WAITING,
    decay=DECAYS,
)
def test_means_are_the_references(
    rows: Tensor, dtype: torch.dtype, group: int, fed_back: bool, waiting: torch.dtype | None, decay: float
) -> None:
    rows = rows.to(dtype)
    num_rows, n = rows.shape
    if n == 0:
        return
    results = []
    for home in (onebit_cpu, onebit_reference):
        above, below = torch.full((2, num_rows, -(-n // group)), 7.0)
        bits = torch.full((num_rows, -(-n // 8) + 3), 7, dtype=torch.uint8)  # rows of a message lie apart
        residual = residual_for(rows, waiting, decay) if fed_back else None
        home.encode(rows, group, above, below, bits[:, :-3], residual)
        assert (bits[:, -3:] == 7).all()
        decoded, narrow, total = torch.empty(num_rows, n), torch.empty(num_rows, n, dtype=dtype), torch.empty(n)
        home.decode(above, below, bits[:, :-3], group, decoded)
        home.decode(above, below, bits[:, :-3], group, narrow)
        home.decode_sum(above, below, bits[:, :-3], group, total)
        results.append((above, below, bits.float(), decoded, narrow, total, residual.new if residual else total))
    for ours, theirs in zip(*results, strict=True):
        assert same(ours, theirs)


@some
@given(
    rows=rows_with_specials(3000),
    dtype=NARROW_ROWS,
    key=st.none() | KEYS,
    window=st.booleans(),
    fed_back=st.booleans(),
    waiting=WAITING,
    decay=DECAYS,
)
def test_powers_of_two_are_the_references(
    rows: Tensor,
    dtype: torch.dtype,
    key: tuple[int, int] | None,
    window: bool,
    fed_back: bool,
    waiting: torch.dtype | None,
    decay: float,
) -> None:
    rows = rows.to(dtype)
    num_rows, n = rows.shape
    if n == 0:
        return
    results = []
    for home in (powers_cpu, powers_reference):
        wire = torch.full((num_rows, n + -(-n // 8) + 3), 7, dtype=torch.uint8)  # rows of a message lie apart
        first = -(-n // powers_reference.POWER_BLOCK) if window else n
        fields = (wire[:, :first], wire[:, first : first + (n if window else -(-n // 8))])
        encode, decode, decode_sum = home.encode, home.decode, home.decode_sum
        if window:
            encode, decode, decode_sum = home.encode_window, home.decode_window, home.decode_window_sum
        residual = residual_for(rows, waiting, decay) if fed_back else None
        encode(rows, key, *fields, residual)
        assert (wire[:, -3:] == 7).all()
        decoded, narrow, total = torch.empty(num_rows, n), torch.empty(num_rows, n, dtype=dtype), torch.empty(n)
        decode(*fields, decoded)
        decode(*fields, narrow)
        decode_sum(*fields, total)
        results.append((wire.float(), decoded, narrow, total, residual.new if residual else total))
    for ours, theirs in zip(*results, strict=True):
        assert same(ours, theirs)


@some
@given(rows=rows_with_specials(3000), dtype=NARROW_ROWS, group=GROUPS, key=KEYS, sparse=st.booleans())
def test_votes_are_the_references(
    rows: Tensor, dtype: torch.dtype, group: int, key: tuple[int, int], sparse: bool
) -> None:
    rows = rows.to(dtype)
    if sparse:
        rows[:, : rows.shape[1] // 2] = 0
    num_rows, n = rows.shape
    if n == 0:
        return
    results = []
    for home in (votes_cpu, votes_reference):
        marks = torch.full((num_rows, -(-n // group)), 7, dtype=torch.uint8)
        bits = torch.full((num_rows, -(-n // 8) + 3), 7, dtype=torch.uint8)
        home.encode(rows, group, key, marks, bits[:, :-3])
        assert (bits[:, -3:] == 7).all()
        decoded, narrow, total = torch.empty(num_rows, n), torch.empty(num_rows, n, dtype=dtype), torch.empty(n)
        home.decode(marks, bits[:, :-3], group, decoded)
        home.decode(marks, bits[:, :-3], group, narrow)
        home.majority(marks, bits[:, :-3], group, total)
        results.append((marks.float(), bits.float(), decoded, narrow, total))
    for ours, theirs in zip(*results, strict=True):
        assert same(ours, theirs)


@some
@given(n=st.integers(0, 400), seed=st.integers(0, 100))
def test_trits_come_back_and_are_the_references(n: int, seed: int) -> None:
    codes = (
        (random_reference.random_bits((seed, n), 2 * n, torch.device("cpu")).view(2, n) % 3 - 1)
        .clamp(-1, 1)
        .to(torch.int8)
    )
    mine, theirs = (torch.full((2, -(-n // 5)), 7, dtype=torch.uint8) for _ in range(2))
    trits_cpu.pack(codes, mine)
    trits_reference.pack(codes, theirs)
    assert torch.equal(mine, theirs)
    for byte, start in zip(mine[0].tolist(), range(0, n, 5), strict=True):
        assert byte == sum((c + 1) * 3**i for i, c in enumerate(codes[0, start : start + 5].tolist()))
    assert torch.equal(trits_cpu.unpack(mine, n), codes)
    assert torch.equal(trits_reference.unpack(mine, n), codes)


@given(bits=st.integers(1, 8), n=st.integers(0, 200))
@few
def test_codes_can_be_unpacked_into_bytes(bits: int, n: int) -> None:
    codes = random_reference.random_bits((bits, n), n, torch.device("cpu")).view(1, n) & ((1 << bits) - 1)
    packed = torch.empty(1, -(-n * bits // 8), dtype=torch.uint8)
    kernels.bits(codes).pack(codes.to(torch.uint8), bits, packed)
    for home in (bits_cpu, bits_reference):
        got = home.unpack(packed, bits, n, torch.uint8)
        assert got.dtype == torch.uint8
        assert torch.equal(got.int(), codes)


@pytest.mark.parametrize(
    ("name", "config"),
    [("onebit", {}), ("signsgd", {"mode": "majority"}), ("nc", {}), ("nc", {"bits": 8}), ("bf16", {}), ("fp16", {})],
)
def test_two_threads_send_and_keep_what_one_does(name: str, config: dict[str, Any]) -> None:
    rows, compressor, seen = normal(2, 600_001), codec(name, config), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            residual = residual_for(rows, torch.float32, 1.0)
            if compressor.traits.no_feedback:
                encoded = compressor.encode(rows, begun())
            else:
                encoded = compressor.encode_with_feedback(rows, residual, begun())
            seen.append((encoded.buffer, residual.new, compressor.decode(encoded), compressor.decode_sum(encoded)))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*seen, strict=True):
        assert torch.equal(one, two)


# ---- published errors -------------------------------------------------------------------------------------------

MILLION = 10**6


@functools.cache
def million(distribution: str) -> Tensor:
    if distribution == "gauss":
        return normal(1, MILLION, 1)
    u = torch.rand(1, MILLION, generator=torch.Generator().manual_seed(2), dtype=torch.float64) - 0.5
    return (-u.sign() * torch.log1p(-2 * u.abs())).float()


def nmse(name: str, config: dict[str, Any], x: Tensor) -> float:
    return float((round_trip(name, config, x).double() - x).square().sum() / x.double().square().sum())


WHOLE = 1 << 20
ERRORS: list[tuple[str, dict[str, Any], float | None, float | None]] = [
    ("int8", {"block_size": 128}, 4.2e-5, 8.0e-5),
    ("int4", {"block_size": 32}, 0.0094, 0.0147),
    ("int4", {"block_size": 128}, 0.0138, 0.0257),
    ("int4", {"block_size": 2048}, 0.0225, 0.056),
    ("int4", {"hadamard": True}, 0.0137, 0.0138),
    # Max, Quantizing for minimum distortion (1960), table II: 3, 5 and 7 output levels
    ("uniform", {"levels": 1, "clip_sigmas": 1.224, "block_size": 2048}, 0.1902, None),
    ("uniform", {"levels": 2, "clip_sigmas": 1.686, "block_size": 2048}, 0.0822, None),
    ("uniform", {"levels": 3, "clip_sigmas": 1.952, "block_size": 2048}, 0.0469, None),
    ("fp8", {"block_size": WHOLE}, 7.0e-4, 7.0e-4),
    ("fp8", {"block_size": WHOLE, "format": "e5m2"}, 0.0028, 0.0028),
    ("qsgd", {}, 0.036, None),
    ("qsgd", {"norm": "l2"}, 1.58, None),
    ("qsgd", {"bits": 8, "norm": "l2"}, 0.0053, None),
    ("qsgd", {"bits": 2, "bucket_size": 128}, 1.26, None),
    ("qsgd", {"bits": 2, "bucket_size": 128, "norm": "l2"}, 8.0, None),
    ("nc", {}, 0.082, 0.082),
    ("nc", {"bits": 8}, 0.082, 0.082),
    ("nc", {"rounding": "nearest"}, 0.038, 0.038),
    ("terngrad", {"bucket_size": None}, 1.01, None),
    ("onebit", {}, 1 - 2 / math.pi, 0.5),
    ("signsgd", {}, 1 - 2 / math.pi, 0.5),
]


@pytest.mark.parametrize(("name", "config", "gauss", "laplace"), ERRORS)
def test_errors_are_the_published_ones(
    name: str, config: dict[str, Any], gauss: float | None, laplace: float | None
) -> None:
    for distribution, expected in (("gauss", gauss), ("laplace", laplace)):
        if expected is not None:
            assert nmse(name, config, million(distribution)) == pytest.approx(expected, rel=0.02), distribution


@pytest.mark.parametrize(("name", "block"), [("int8", 128), ("int4", 128), ("int4", 32)])
def test_stochastic_rounding_costs_twice_the_error(name: str, block: int) -> None:
    x = million("gauss")
    nearest, stochastic = (nmse(name, {"block_size": block, "rounding": r}, x) for r in ("nearest", "stochastic"))
    assert stochastic / nearest == pytest.approx(2, rel=0.02)


# ---- bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "config", "bits", "overhead"),
    [
        ("int4", {}, 4, 32 / 128),
        ("int4", {"hadamard": True, "rounding": "stochastic", "block_size": 2048}, 4, 32 / 2048),
        *[("int8", {"num_bits": bits}, bits, 32 / 256) for bits in range(2, 9)],
        ("uniform", {}, 3, 32 / 128),
        ("uniform", {"levels": 1, "block_size": 2048}, 2, 32 / 2048),
        ("uniform", {"levels": 1, "bits": 4}, 4, 32 / 128),
        ("int4", {"scales": "bf16", "block_size": 96}, 4, 16 / 96),
        ("fp8", {}, 8, 32 / 256),
        *[("qsgd", {"bits": bits}, bits, 32 / 512) for bits in range(1, 9)],
        ("qsgd", {"bits": 8, "levels": 5}, 4, 32 / 512),
        ("nc", {}, 9, 0),
        ("nc", {"bits": 8}, 8, 8 / 2048),
        ("terngrad", {}, 2, 32 / 512),
        ("terngrad", {"packing": "base3", "bucket_size": None}, 1.6, 0),
        ("onebit", {}, 1, 64 / 1024),
        ("signsgd", {}, 1, 32 / 1024),
        ("signsgd", {"mode": "majority"}, 1, 8 / 1024),
    ],
)
def test_codes_take_their_bits_and_scales_no_more_than_said(
    name: str, config: dict[str, Any], bits: float, overhead: float
) -> None:
    compressor, n = codec(name, config), 100_003
    encoded = compressor.encode(normal(2, n), begun())
    count = encoded.byte_count(0)
    assert count.total == encoded.row(0).numel() == compressor.wire_bytes(n)
    assert bits <= 8 * count.values / n <= bits * 1.005
    assert 8 * count.metadata / n == pytest.approx(overhead, rel=0.01, abs=0.005)


@pytest.mark.parametrize(
    ("config", "name", "same"),
    [
        ({"num_bits": 8}, "int8", {}),
        (
            {"num_bits": 8, "hadamard": True, "rounding": "stochastic"},
            "int8",
            {"hadamard": True, "rounding": "stochastic"},
        ),
        ({"num_bits": 4, "block_size": 128}, "int4", {}),
        ({"num_bits": 3, "block_size": 128}, "uniform", {"levels": 3}),
        ({"num_bits": 6}, "uniform", {"levels": 31, "block_size": 256}),
        ({"num_bits": 2, "block_size": 64}, "uniform", {"levels": 1, "block_size": 64}),
    ],
)
def test_int8_of_fewer_bits_sends_the_bytes_of_its_kin(config: dict[str, Any], name: str, same: dict[str, Any]) -> None:
    rows = heavy(3, 5_003, 1)
    ours, kin = codec("int8", config).encode(rows, begun()), codec(name, same).encode(rows, begun())
    assert torch.equal(ours.buffer, kin.buffer)
    assert ours.byte_count(0) == kin.byte_count(0)


@few
@given(bits=st.integers(2, 8), n=st.integers(1, 700), block=st.sampled_from([8, 64, 256]), seed=st.integers(0, 100))
def test_int8_of_fewer_bits_is_the_textbook_quantiser(bits: int, n: int, block: int, seed: int) -> None:
    rows, levels = heavy(1, n, seed), np.float32((1 << (bits - 1)) - 1)
    x, expected = rows[0].numpy(), np.zeros(n, np.float32)
    for start in range(0, n, block):
        part = slice(start, start + block)
        scale = np.abs(x[part]).max() / levels
        expected[part] = np.round(x[part] * (np.float32(1) / scale)) * scale
    got = round_trip("int8", {"num_bits": bits, "block_size": block}, rows)[0].numpy()
    assert (got == expected).all()


# ---- int4, Hadamard ---------------------------------------------------------------------------------------------


@few
@given(n=st.integers(1, 500), block=st.sampled_from([8, 32, 128]), seed=st.integers(0, 100))
def test_int4_is_the_textbook_quantiser_two_in_a_byte(n: int, block: int, seed: int) -> None:
    rows = heavy(1, n, seed)
    encoded = codec("int4", {"block_size": block}).encode(rows, begun())
    x, expected, nibbles = rows[0].numpy(), np.zeros(n, np.float32), np.zeros(n + 1, np.int64)
    for start in range(0, n, block):
        part = slice(start, start + block)
        scale = np.abs(x[part]).max() / np.float32(7)
        codes = np.round(x[part] * (np.float32(1) / scale))
        nibbles[start : start + len(codes)] = codes.astype(np.int64) & 15
        expected[part] = codes * scale
    half = -(-n // 2)
    assert (encoded["codes"][0].numpy() == nibbles[0 : 2 * half : 2] + 16 * nibbles[1 : 2 * half : 2]).all()
    assert (round_trip("int4", {"block_size": block}, rows)[0].numpy() == expected).all()


@few
@given(n=st.integers(1, 400), seed=st.integers(0, 100))
def test_a_rotation_keeps_the_two_norm_bound_and_the_tail_exact(n: int, seed: int) -> None:
    """Rotated or not, the error of whole blocks is at most half a step an element in the 2-norm."""
    rows = heavy(1, n, seed)
    got = round_trip("int8", {"hadamard": True, "block_size": 32}, rows).double()
    whole = n // 32 * 32
    rotated = blocks_reference.rotated(rows).double()
    for start in range(0, n, 32):
        step = float(rotated[0, start : start + 32].abs().max()) / 127
        error = (got - rows)[0, start : start + 32]
        assert float(error.norm()) <= step / 2 * math.sqrt(error.numel()) * 1.001 + 1e-12
    assert torch.equal(got[:, whole:], round_trip("int8", {"block_size": 32}, rows).double()[:, whole:])


def test_a_rotation_spreads_an_outlier() -> None:
    rows = normal(1, 128 * 100, 3)
    rows[0, ::128] = 100
    plain, rotated = (
        (round_trip("int4", {"hadamard": h}, rows) - rows)[0].view(-1, 128)[:, 1:].square().mean()
        for h in (False, True)
    )
    assert rotated < plain  # unrotated, 1 is a fourteenth of a step: all else is lost
    assert plain == pytest.approx(1, rel=0.05)


# ---- fp8 --------------------------------------------------------------------------------------------------------


@few
@given(
    format_=st.sampled_from([("e4m3", ml_dtypes.float8_e4m3fn, 448), ("e5m2", ml_dtypes.float8_e5m2, 57344)]),
    n=st.integers(1, 600),
    block=st.sampled_from([8, 104, 256]),
    exponent=st.integers(-34, 34),
    seed=st.integers(0, 100),
)
def test_fp8_rounds_like_ml_dtypes(format_: tuple[str, Any, int], n: int, block: int, exponent: int, seed: int) -> None:
    name, dtype, largest = format_
    rows = heavy(1, n, seed) * 10.0**exponent
    rows[~rows.isfinite()] = 0
    got = round_trip("fp8", {"format": name, "block_size": block}, rows)[0].numpy()
    for start in range(0, n, block):
        x = rows[0, start : start + block].numpy()
        scale = np.abs(x).max() / np.float32(largest)
        usable = scale >= np.finfo(np.float32).tiny
        codes = (x * (np.float32(1) / scale)).astype(dtype) if usable else np.zeros(len(x), dtype)
        assert np.array_equal(got[start : start + block], codes.astype(np.float32) * (scale if usable else 0))


@few
@given(
    format_=st.sampled_from([("e4m3", 2.0**-4, 2.0**-10 / 448), ("e5m2", 2.0**-3, 2.0**-17 / 57344)]),
    exponent=st.integers(-20, 30),
    seed=st.integers(0, 100),
)
def test_fp8_errs_relative_to_each_element(format_: tuple[str, float, float], exponent: int, seed: int) -> None:
    name, relative, absolute = format_
    rows = heavy(1, 256, seed) ** 3 * 10.0**exponent
    rows = rows[:, rows[0].isfinite()]
    error = (round_trip("fp8", {"format": name}, rows).double() - rows.double()).abs()
    bound = torch.maximum(relative * rows.double().abs(), absolute * rows.double().abs().max())
    assert (error <= bound * (1 + 1e-5)).all()


# ---- qsgd and terngrad ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["qsgd", "terngrad", "nc"])
def test_ranks_round_independently(name: str) -> None:
    """With independent noise the error of the mean of 16 ranks has a sixteenth of the variance."""
    x = normal(1, 20_000, 5)
    compressor = codec(name, {"clip_sigmas": 0} if name == "terngrad" else {})
    decoded = torch.cat([compressor.decode(compressor.encode(x, begun(rank))) for rank in range(16)]).double()
    one, mean = (decoded[0] - x).square().mean(), (decoded.mean(0) - x).square().mean()
    assert float(one / mean) == pytest.approx(16, rel=0.1)


# ---- natural compression ----------------------------------------------------------------------------------------


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


# ---- one bit ----------------------------------------------------------------------------------------------------


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


# ---- what all share ---------------------------------------------------------------------------------------------

BLOCKED: list[tuple[str, dict[str, Any]]] = [
    ("int4", {"block_size": 32}),
    ("int8", {"block_size": 32, "hadamard": True}),
    ("int8", {"block_size": 32, "rounding": "stochastic"}),
    ("fp8", {"block_size": 32}),
    ("fp8", {"block_size": 32, "format": "e5m2"}),
    ("qsgd", {"bucket_size": 32}),
    ("qsgd", {"bucket_size": 32, "norm": "l2", "bits": 1}),
    ("terngrad", {"bucket_size": 32}),
    ("onebit", {"group_size": 32}),
    ("signsgd", {"group_size": 32}),
    ("signsgd", {"group_size": 32, "mode": "majority"}),
]


@pytest.mark.parametrize(("name", "config"), BLOCKED)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_spoils_its_block_only(name: str, config: dict[str, Any], bad: float) -> None:
    rows = normal(1, 100)
    rows[0, 40] = bad
    got = round_trip(name, config, rows)
    assert not got[0, 40].isfinite()
    assert got[0, :32].isfinite().all()
    assert got[0, 64:].isfinite().all()


@pytest.mark.parametrize(("name", "config"), [*BLOCKED, ("nc", {}), ("nc", {"bits": 8})])
@pytest.mark.parametrize("value", [3.4e38, -3.4e38, 1e-39, -1e-45])
def test_finite_numbers_of_any_size_stay_finite(name: str, config: dict[str, Any], value: float) -> None:
    if config.get("hadamard"):
        value /= 6  # a rotated element may be sqrt(32) times the largest
    got = round_trip(name, config, torch.full((1, 70), value))
    assert got.isfinite().all()


@pytest.mark.parametrize(
    ("name", "config"), [*BLOCKED, ("nc", {}), ("nc", {"bits": 8}), ("terngrad", {"bucket_size": None})]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_inputs_give_the_bytes_of_their_float32_values(
    name: str, config: dict[str, Any], dtype: torch.dtype
) -> None:
    rows, compressor = normal(2, 300).to(dtype), codec(name, config)
    assert torch.equal(compressor.encode(rows, begun()).buffer, compressor.encode(rows.float(), begun()).buffer)


@pytest.mark.parametrize("name", ["onebit", "signsgd", "int4", "terngrad"])
def test_feedback_delivers_a_constant_gradient_in_the_end(name: str) -> None:
    """The mean delivered tends to the gradient at a rate of 1 / steps: what is missing is one residual."""
    compressor, states = build(name, {"error_feedback": True}), simulate.states(1)
    gradient, steps = normal(1, 64), 400
    delivered = torch.zeros(1, 64)
    for _ in range(steps):
        states[0].begin()
        delivered += simulate.reduce_scatter(compressor, [gradient], states)[0].total
    error = float((delivered / steps - gradient).norm() / gradient.norm())
    assert error < 0.05


def test_feedback_is_on_where_the_method_needs_it() -> None:
    for name in ("onebit", "signsgd"):
        assert isinstance(build(name, {}), ErrorFeedback)
        assert not isinstance(build(name, {"error_feedback": False}), ErrorFeedback)
    for config in ({}, {"error_feedback": False}):
        assert not isinstance(build("signsgd", {"mode": "majority", **config}), ErrorFeedback)
    for name in ("fp8", "int4", "qsgd", "nc", "terngrad"):
        assert not isinstance(build(name, {}), ErrorFeedback)


@pytest.mark.parametrize(
    ("name", "config", "allowed"),
    [
        ("int4", {}, True),
        ("int4", {"hadamard": True}, True),
        ("int4", {"rounding": "stochastic"}, False),
        ("int8", {"num_bits": 4}, True),
        ("int8", {"num_bits": 3}, False),
        ("int8", {"rounding": "stochastic"}, False),
        ("uniform", {"levels": 2, "clip_sigmas": 1.2}, True),
        ("uniform", {"levels": 1, "clip_sigmas": 1.2}, False),
        ("uniform", {"rounding": "stochastic"}, False),
        ("fp8", {}, True),
        ("qsgd", {"bits": 8}, False),
        ("nc", {"rounding": "nearest"}, False),
        ("terngrad", {}, False),
        ("signsgd", {"mode": "majority"}, False),
    ],
)
def test_parameters_go_by_deterministic_close_quantisers_only(name: str, config: dict[str, Any], allowed: bool) -> None:
    compressor = build(name, config)
    assert compressor.traits.for_parameters == allowed


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("int4", {"block_size": 7}, ["block_size = 7", "between 8"]),
        ("int4", {"rounding": "up"}, ["rounding = 'up'", "'nearest'", "'stochastic'"]),
        ("int8", {"scale": "global", "hadamard": True}, ["hadamard = True", "scale = 'global'"]),
        ("int8", {"scale": "global", "rounding": "stochastic"}, ["rounding = 'stochastic'", "scale = 'global'"]),
        ("int8", {"scale": "global", "num_bits": 4}, ["num_bits = 4", "summed as bytes"]),
        ("int8", {"num_bits": 1}, ["num_bits = 1", "between 2 and 8"]),
        ("int8", {"num_bits": 16}, ["num_bits = 16", "between 2 and 8"]),
        ("uniform", {"levels": 0}, ["levels = 0", "between 1 and 127"]),
        ("uniform", {"levels": 4, "bits": 3}, ["bits = 3", "null, or from 4"]),
        ("uniform", {"clip_sigmas": -0.5}, ["clip_sigmas = -0.5"]),
        ("uniform", {"hadamard": True, "block_size": 40}, ["block_size = 40"]),
        ("fp8", {"format": "e3m4"}, ["format = 'e3m4'", "'e4m3'", "'e5m2'"]),
        ("fp8", {"block_size": 0}, ["block_size = 0"]),
        ("qsgd", {"bits": 9}, ["bits = 9", "between 1 and 8"]),
        ("qsgd", {"bits": 1, "levels": 1}, ["levels = 1", "bits = 1"]),
        ("qsgd", {"bits": 4, "levels": 8}, ["levels = 8", "between 1 and 7"]),
        ("qsgd", {"bucket_size": 2}, ["bucket_size = 2"]),
        ("nc", {"bits": 7}, ["bits = 7", "8", "9"]),
        ("terngrad", {"clip_sigmas": -1}, ["clip_sigmas = -1", "0 (no clipping)"]),
        ("terngrad", {"clip_sigmas": math.nan}, ["clip_sigmas = nan"]),
        ("terngrad", {"packing": "3bit"}, ["packing = '3bit'", "'base3'"]),
        ("onebit", {"group_size": 1}, ["group_size = 1"]),
        ("signsgd", {"mode": "minority"}, ["mode = 'minority'", "'scaled'", "'majority'"]),
        ("signsgd", {"mode": "majority", "error_feedback": True}, ["error_feedback", "majority"]),
    ],
)
def test_mistakes_are_named(name: str, config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
        cc.make(name, config)
    for word in words:
        assert word in str(caught.value)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), (2, 100), (3, 1 << 19)])
@pytest.mark.parametrize("factor", [0.0, 1.0, 0.3])
def test_whole_numbers_are_the_references(dtype: torch.dtype, shape: tuple[int, int], factor: float) -> None:
    """Halves included; into strided codes; with the factor 0 whatever the rows hold. On two threads."""
    halves = torch.arange(-127, 127.5, 0.5)
    rows = halves.repeat(math.ceil(shape[0] * shape[1] / len(halves)))[: shape[0] * shape[1]].view(shape).to(dtype)
    if factor == 0 and rows.numel():
        rows.view(-1)[:3] = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)[: rows.numel()]
    results = []
    for module in (casts_reference, casts_cpu):
        codes = torch.full((shape[0], shape[1] + 5), 7, dtype=torch.int8)
        module.round_to_bytes(rows, torch.tensor(factor), codes[:, 2:-3])
        results.append(codes)
    assert torch.equal(*results)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), (2, 100), (3, 1 << 19)])
@pytest.mark.parametrize("scale", [0.0, 0.3, math.nan])
def test_whole_numbers_times_a_scale_are_the_references(shape: tuple[int, int], scale: float) -> None:
    """Stored and subtracted, to the last digit, from strided codes on two threads."""
    num_rows, n = shape
    source = torch.Generator().manual_seed(0)
    codes = torch.randint(-128, 128, (num_rows, n + 5), dtype=torch.int8, generator=source)[:, 2:-3]
    start = torch.randn(shape, generator=source)
    results = []
    for module in (casts_reference, casts_cpu):
        stored, taken = torch.empty(shape), start.clone()
        module.scale_bytes(codes, torch.tensor(scale), stored)
        module.subtract_bytes(codes, torch.tensor(scale), taken)
        results.append((stored, taken))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    for found, expected in zip(results[0], (codes.float() * scale, start - codes.float() * scale), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
