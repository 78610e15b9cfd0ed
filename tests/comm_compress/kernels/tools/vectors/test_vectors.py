"""Vectors in CPU kernels against numpy and torch, at every length of the last, partial one."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from comm_compress.kernels.quantisers.blocks.float8 import from_float8, to_float8
from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.vectors.nontemporal import fence, stream
from comm_compress.kernels.tools.vectors.packing import load_codes, store_codes
from comm_compress.kernels.tools.vectors.vectors import (
    LANES,
    at_least,
    bits_of,
    load,
    load_mask,
    negated,
    reaching,
    splat,
    store,
    store_mask,
    where,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
HARD = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-40, 6e-8, 2.9e-8, 65519.0, 65520.0, 3.4e38, -3.39e38]


def numbers(n: int, dtype: torch.dtype) -> Tensor:
    """Of all sizes, the hard ones first, and behind them a few more that nobody may touch."""
    generator = torch.Generator().manual_seed(n)
    sizes = 10.0 ** (torch.rand(n + 4, generator=generator) * 84 - 44)
    values = torch.randn(n + 4, generator=generator) * sizes
    values[: min(n, len(HARD))] = torch.tensor(HARD)[:n]
    return values.to(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    """Any NaN like any other."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a[~a.isnan()], b[~b.isnan()])


@compiled
def _pack(values: Array, out: Array) -> None:
    for i in range(0, values.size, LANES):
        store_mask(out, i >> 3, values.size - i, at_least(load(values, i, values.size), np.float32(0)))


@compiled
def _expand(bits: Array, a: np.float32, b: np.float32, out: Array) -> None:
    for i in range(0, out.size, LANES):
        store(out, i, out.size, where(load_mask(bits, i >> 3, out.size - i), splat(a), splat(b)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [*range(68), 1027])
def test_signs_are_numpys_packbits_and_expand_again(n: int, dtype: torch.dtype) -> None:
    values, size = numbers(n, dtype), -(-n // 8)
    packed = np.full(size + 4, 7, np.uint8)
    _pack(bits_of(values)[:n], packed[:size])
    assert (packed[:size] == np.packbits((values[:n] >= 0).numpy(), bitorder="little")).all()
    assert (packed[size:] == 7).all(), "written beyond the end"
    out = values.clone()
    _expand(packed[:size], np.float32(1.001), np.float32(-math.inf), bits_of(out)[:n])
    assert torch.equal(out[:n], torch.where(values[:n] >= 0, 1.001, -math.inf).to(dtype))
    assert torch.equal(out[n:], values[n:]), "written beyond the end"


@compiled
def _copy(source: Array, target: Array) -> None:
    for i in range(0, source.size, LANES):
        store(target, i, source.size, load(source, i, source.size))


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 5000])
def test_loads_and_stores_convert_as_torch_does(n: int, source: torch.dtype, target: torch.dtype) -> None:
    values = numbers(n, source)
    out = torch.full((n + 4,), 7.0).to(target)
    _copy(bits_of(values)[:n], bits_of(out))
    expected = values[:n].to(target)
    assert same(out[:n], expected)
    assert torch.equal(out[:n].signbit() | out[:n].isnan(), expected.signbit() | expected.isnan())
    assert (out[n:] == 7).all(), "written beyond the end"


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_every_narrow_number_is_loaded_as_it_is(narrow: torch.dtype) -> None:
    values = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(narrow)
    out = torch.empty(values.shape)
    _copy(bits_of(values), bits_of(out))
    assert same(out, values.float())


@compiled
def _negate_and_find(values: Array, signs: np.uint32, floor: np.int32, out: Array) -> np.uint32:
    x = load(values, 0, values.size)
    store(out, 0, out.size, negated(signs, x))
    return reaching(x, floor)


@pytest.mark.parametrize("seed", range(20))
def test_masks_of_signs_and_of_magnitudes(seed: int) -> None:
    values, generator = numbers(LANES, torch.float32)[:LANES], np.random.default_rng(seed)
    bits, out = generator.integers(0, 2, LANES), torch.empty(LANES)
    floor = generator.choice(values.view(torch.int32).numpy() & 0x7FFFFFFF)
    word = np.packbits(bits, bitorder="little").view(np.uint32)[0]
    found = _negate_and_find(bits_of(values), word, np.int32(floor), bits_of(out))
    assert same(out, torch.where(torch.from_numpy(bits == 1), -values, values))
    assert torch.equal(out.signbit(), values.signbit() ^ torch.from_numpy(bits == 1))
    assert [found >> j & 1 for j in range(LANES)] == ((values.view(torch.int32) & 0x7FFFFFFF) >= floor).int().tolist()


@compiled
def _stream(source: Array, target: Array, start: int) -> None:
    for i in range(0, source.size, LANES):
        stream(target, start + i, start + source.size, load(source, i, source.size))
    fence()


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 40, 100, 1000])
@pytest.mark.parametrize("start", [0, 1, 7, 15, 16, 33])
def test_streams_write_what_they_should_and_no_more(n: int, start: int) -> None:
    source = torch.randn(n)
    for offset in range(0, 16, 3):
        target = torch.full((start + n + 50,), 7.0)
        _stream(source.numpy(), target[offset:].numpy(), start)
        first = offset + start
        assert torch.equal(target[first : first + n], source)
        assert (target[:first] == 7).all(), "written before the beginning"
        assert (target[first + n :] == 7).all(), "written beyond the end"


@compiled
def _e4m3(values: Array, codes: Array, out: Array) -> None:
    for i in range(0, values.size, LANES):
        code = to_float8(load(values, i, values.size), 3)
        store_codes(codes, i, codes.size, 8, code)
        store(out, i, out.size, from_float8(code, 3))


@compiled
def _e5m2(values: Array, codes: Array, out: Array) -> None:
    for i in range(0, values.size, LANES):
        code = to_float8(load(values, i, values.size), 2)
        store_codes(codes, i, codes.size, 8, code)
        store(out, i, out.size, from_float8(load_codes(codes, i, codes.size, 8), 2))


@pytest.mark.parametrize(
    ("convert", "dtype"), [(_e4m3, torch.float8_e4m3fn), (_e5m2, torch.float8_e5m2)], ids=["e4m3", "e5m2"]
)
def test_float8_is_torchs_at_every_number_between_and_beside_two_codes(
    convert: Callable[..., None], dtype: torch.dtype
) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    every = every[every.isfinite()].sort().values
    halves = (every[1:] + every[:-1]) / 2
    beside = [torch.nextafter(x, torch.full_like(x, to)) for x in (every[1:-1], halves) for to in (-math.inf, math.inf)]
    values = torch.cat((every, halves, *beside, torch.tensor([1e-45, -1e-40, 1e-30])))
    codes, out = torch.empty(values.shape, dtype=torch.uint8), torch.empty(values.shape)
    convert(values.numpy(), codes.numpy(), out.numpy())
    expected = values.to(dtype)
    assert torch.equal(codes, expected.view(torch.uint8))
    assert torch.equal(out, expected.float())
