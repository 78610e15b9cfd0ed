"""Uniform quantisers of 2 to 8 bits against the textbook's, and what a rotation does for them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from comm_compress.kernels.quantisers.blocks import reference as blocks_reference
from tests.comm_compress.quantised import begun, few, heavy, normal, round_trip
from tests.comm_compress.table import codec


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
