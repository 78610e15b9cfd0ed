"""What is not finite is found wherever it stands, and differences have the reference's bits."""

from __future__ import annotations

import math

import pytest
import torch

from comm_compress.core import nonfinite
from comm_compress.kernels.elements.finite import cpu as finite_cpu, reference as finite_reference

SIZES = [1, 31, 1000, finite_cpu.PIECE, finite_cpu.PIECE + 1]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_what_is_not_finite_is_found(n: int, dtype: torch.dtype) -> None:
    x = torch.full((n,), torch.finfo(dtype).max, dtype=dtype)
    assert bool(finite_cpu.all_finite(x))
    assert bool(finite_cpu.all_finite(-x))
    for place in {0, n // 2, n - 1}:
        for bad in (math.nan, math.inf, -math.inf):
            y = x.clone()
            y[place] = bad
            assert not bool(finite_cpu.all_finite(y))
            assert not bool(finite_reference.all_finite(y))


def test_only_the_elements_of_a_view_count() -> None:
    x = torch.zeros(4, 6)
    x[:, 5] = math.nan
    assert bool(finite_cpu.all_finite(x[:, :5]))
    assert not bool(finite_cpu.all_finite(x[:, 1:]))
    assert bool(finite_cpu.all_finite(x.view(-1)[:5]))  # and what follows is not read


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("n", SIZES)
def test_differences_are_the_references(n: int, dtype: torch.dtype) -> None:
    a, b = torch.randn(2, n, generator=torch.Generator().manual_seed(n)).unbind()
    for bad in (None, math.nan, math.inf):
        if bad is not None:
            a[n - 1] = bad
        ours, theirs = torch.full((n + 1,), 7.0), torch.empty(n)
        found = [
            bool(finite_cpu.difference(a, b.to(dtype), ours[:n])),
            bool(finite_reference.difference(a, b.to(dtype), theirs)),
        ]
        assert found == [bad is None] * 2
        assert torch.equal(ours[:n].view(torch.int32), theirs.view(torch.int32))
        assert ours[n] == 7


@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_a_mark_is_put_in_front_of_every_row_and_only_then(dtype: torch.dtype) -> None:
    rows = torch.ones(3, 50, dtype=dtype)
    assert bool(nonfinite.mark(rows))
    assert torch.equal(rows, torch.ones(3, 50, dtype=dtype))
    rows[1, 20] = math.inf
    assert not bool(nonfinite.mark(rows))
    assert torch.equal(rows[:, 0].isnan(), torch.ones(3, dtype=torch.bool))
    assert torch.equal(rows[0, 1:], torch.ones(49, dtype=dtype))
