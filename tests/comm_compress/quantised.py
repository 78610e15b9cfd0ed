"""Rows for quantisers, with everything in them that may go wrong, and their way through a method."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import settings, strategies as st
from torch import Tensor

from comm_compress.core.state import State
from comm_compress.kernels import Residual
from tests.comm_compress.table import codec

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


NARROW_ROWS = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


GROUPS = st.sampled_from([8, 56, 256, 1024, 2080])


def residual_for(rows: Tensor, waiting: torch.dtype | None, decay: float) -> Residual:
    """One that holds a hundredth of other numbers, or nothing yet."""
    old = None if waiting is None else (rows.float().flip(1) * 0.01).to(waiting)
    return Residual(old, decay, torch.full(rows.shape, 7.0))


WAITING = st.sampled_from([None, torch.float32, torch.bfloat16])


DECAYS = st.sampled_from([1.0, 0.9])


MILLION = 10**6


def nmse(name: str, config: dict[str, Any], x: Tensor) -> float:
    return float((round_trip(name, config, x).double() - x).square().sum() / x.double().square().sum())
