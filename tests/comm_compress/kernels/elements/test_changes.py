"""A change of any bit is seen, wherever it is; numbers that are equal but not the same bits are a change."""

from __future__ import annotations

import math

import pytest
import torch

from comm_compress.kernels.elements.changes import cpu as changes_cpu, reference as changes_reference

SAME = [changes_cpu.same_bits, changes_reference.same_bits]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 33, changes_cpu.PIECE, 2 * changes_cpu.PIECE + 5])
def test_every_bit_of_every_place_counts(n: int, dtype: torch.dtype) -> None:
    a = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    a[: n // 2] = math.nan
    words = torch.int32 if dtype == torch.float32 else torch.int16
    for same in SAME:
        assert same(a, a.clone())
        for place in {0, n // 2, n - 1} if n else set():
            for bit in (0, 8 * a.itemsize - 1):
                b = a.clone()
                b.view(words)[place] ^= -(1 << bit) if bit else 1
                assert not same(a, b)


def test_only_the_elements_of_a_view_count() -> None:
    a, b = torch.zeros(4, 6), torch.zeros(4, 6)
    b[:, 5] = 1
    for same in SAME:
        assert same(a[:, :5], b[:, :5])
        assert not same(a[:, 1:], b[:, 1:])
