"""What all quantisers of every element share: published errors, bytes, threads, what is not finite, settings."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import comm_compress as cc
from comm_compress.drive import simulate
from comm_compress.wrappers.error_feedback import ErrorFeedback
from tests.comm_compress.quantised import MILLION, begun, nmse, normal, residual_for, round_trip
from tests.comm_compress.table import build, codec


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


@functools.cache
def million(distribution: str) -> Tensor:
    if distribution == "gauss":
        return normal(1, MILLION, 1)
    u = torch.rand(1, MILLION, generator=torch.Generator().manual_seed(2), dtype=torch.float64) - 0.5
    return (-u.sign() * torch.log1p(-2 * u.abs())).float()


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


@pytest.mark.parametrize("name", ["qsgd", "terngrad", "nc"])
def test_ranks_round_independently(name: str) -> None:
    """With independent noise the error of the mean of 16 ranks has a sixteenth of the variance."""
    x = normal(1, 20_000, 5)
    compressor = codec(name, {"clip_sigmas": 0} if name == "terngrad" else {})
    decoded = torch.cat([compressor.decode(compressor.encode(x, begun(rank))) for rank in range(16)]).double()
    one, mean = (decoded[0] - x).square().mean(), (decoded.mean(0) - x).square().mean()
    assert float(one / mean) == pytest.approx(16, rel=0.1)


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
