"""The largest elements of a row, and those above a threshold: numpy's choice, whatever is added on the way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from comm_compress import kernels
from comm_compress.kernels import Residual
from comm_compress.kernels.selection.select import reference as select_reference
from tests.comm_compress.methods.sparsifiers.samples import CPU, normal, state, top_by_numpy
from tests.comm_compress.table import codec

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-40, 3.4e38, 1.0, -1.0]


def largest(module: Any, rows: Tensor, k: int, residual: Residual | None = None) -> tuple[Tensor, Tensor]:
    """Places and values."""
    places, values = torch.empty(rows.shape[0], k, dtype=torch.int32), torch.empty(rows.shape[0], k)
    module.largest(rows, places, values, residual)
    return places, values


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(1, 400),
    share=st.floats(0, 1),
    seed=st.integers(0, 1000),
    distinct=st.sampled_from([2, 5, 1 << 20]),
    special=st.lists(st.tuples(st.sampled_from(SPECIAL), st.floats(0, 0.999)), max_size=4),
)
def test_topk_is_numpys_stable_sort(
    n: int, share: float, seed: int, distinct: int, special: list[tuple[float, float]]
) -> None:
    """With many equal magnitudes (``distinct``) and whatever else floats can be."""
    rows = (normal(2, n, seed) * distinct).round() / distinct
    for value, place in special:
        rows[0, int(place * n)] = value
    k = round(share * n)
    for module in (kernels.select.on(CPU), select_reference):
        got, values = largest(module, rows, k)
        for row, places, taken in zip(rows.numpy(), got.numpy(), values.numpy(), strict=True):
            assert np.array_equal(places, top_by_numpy(row, k))
            assert taken.tobytes() == row[places].tobytes()


def rows_of(kind: str, n: int) -> Tensor:
    """Long rows, where the threshold is first guessed from every so many-th element: also such as mislead the guess."""
    x = normal(1, n, 7)
    stride = max(1, n >> 14)
    sampled = torch.arange(1 << 14) * stride + ((torch.arange(1 << 14) * 40503 & 0xFFFF) * stride >> 16)
    sampled = sampled[sampled < n]
    if kind == "constant":
        return torch.full((1, n), -2.5)
    if kind == "sparse":
        return x * (torch.rand(1, n, generator=torch.Generator().manual_seed(1)) < 0.002)
    if kind == "sampled places large":
        x[:, sampled] += 100
    if kind == "sampled places zero":
        x[:, sampled] = 0
    if kind == "large ones at the end":
        x[:, -n // 50 :] *= 50
    if kind == "one value in two places":
        x[:, : n // 2] = x[:, n - n // 2 :]
    return x


@pytest.mark.parametrize("n", [(1 << 16) - 1, 1 << 16, 150_001])
@pytest.mark.parametrize(
    "kind",
    [
        "normal",
        "constant",
        "sparse",
        "sampled places large",
        "sampled places zero",
        "large ones at the end",
        "one value in two places",
    ],
)
def test_topk_of_long_rows_is_numpys_stable_sort(kind: str, n: int) -> None:
    rows = rows_of(kind, n)
    for k in (1, n // 1000, n // 100, n // 3, n):
        got, values = largest(kernels.select.on(CPU), rows, k)
        assert np.array_equal(got[0].numpy(), top_by_numpy(rows[0].numpy(), k)), k
        assert torch.equal(values, rows[:, got[0].long()]), k


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 300), seed=st.integers(0, 100), threshold=st.floats(0, 3))
def test_at_least_is_a_comparison(n: int, seed: int, threshold: float) -> None:
    rows = normal(3, n, seed)
    floors = torch.tensor([threshold, 0.0, 100.0])
    for module in (kernels.select.on(CPU), select_reference):
        found = module.at_least(rows, floors)
        for row, (places, values), floor in zip(rows.numpy(), found, floors.numpy(), strict=True):
            assert np.array_equal(places.numpy(), np.flatnonzero(np.abs(row) >= floor))
            assert np.array_equal(values.numpy(), row[places.numpy()])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", ["normal", "constant", "sparse", "sampled places large", "sampled places zero"])
@pytest.mark.parametrize("n", [1000, 70_001, 400_003])  # the last in three parts: threads.PART
def test_what_is_added_on_the_way_is_chosen_from(kind: str, n: int, threads: int) -> None:
    """The sums, and what is chosen from them, are the same bit for bit in one pass as in two; in parts as in one."""
    rows = torch.cat([rows_of(kind, n), normal(1, n)])
    old = normal(2, n, 3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for decay in (1.0, 0.9):
            target = rows + old * decay
            new = torch.full((2, n), math.nan)
            places, values = largest(kernels.select.on(CPU), rows, n // 100, Residual(old, decay, new))
            assert torch.equal(new, target)
            assert torch.equal(values, target.gather(1, places.long()))
            assert all(
                np.array_equal(p, top_by_numpy(t, n // 100))
                for p, t in zip(places.numpy(), target.numpy(), strict=True)
            )
            floors = torch.tensor([0.5, 2.5])
            found = kernels.select(rows).at_least(rows, floors, Residual(old, decay, new.fill_(math.nan)))
            assert torch.equal(new, target)
            for t, (at, reached), floor in zip(target, found, floors, strict=True):
                assert torch.equal(at, (t.abs() >= floor).nonzero().flatten().int())
                assert torch.equal(reached, t[at.long()])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("old", [None, torch.bfloat16])
def test_any_residual_is_added(old: torch.dtype | None) -> None:
    """None in the first step, bfloat16 where it is kept so; and rows of any dtype."""
    n = 100_000
    waiting = None if old is None else normal(2, n, 5).to(old)
    for dtype in (torch.float32, torch.bfloat16):
        rows = normal(2, n).to(dtype)
        target = rows.float() if waiting is None else rows.float() + waiting.float() * 0.5
        new = torch.empty(2, n)
        sent = codec("topk", {}).encode_with_feedback(rows, Residual(waiting, 0.5, new), state(2))
        assert torch.equal(codec("topk", {}).decode(sent) + new, target)
        assert int((new != target).sum()) == 2 * n // 100
