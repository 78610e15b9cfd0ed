"""Subsets of coordinates that all ranks draw alike: distinct, nested, uniform, the reference's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from comm_compress import kernels
from comm_compress.kernels.selection.subsets import reference as permutation
from tests.comm_compress.methods.sparsifiers.samples import CPU


@given(n=st.integers(1, 300), key=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)))
@settings(max_examples=40, deadline=None)
def test_a_subset_of_all_is_a_permutation_and_smaller_ones_lie_within_larger(n: int, key: tuple[int, int]) -> None:
    draw = [set(kernels.subsets.on(CPU).random_subset(key, n, k, CPU).tolist()) for k in range(n + 1)]
    assert draw[n] == set(range(n))
    assert all(len(draw[k]) == k and draw[k] <= draw[k + 1] for k in range(n))


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1 << 20, (1 << 20) + 1, 2**31 - 1])
@pytest.mark.parametrize("k", [0, 1, 1023, 1025, 5000])
def test_subsets_are_the_references(n: int, k: int) -> None:
    for key in ((1, 2), (2**32 - 1, 5)):
        mine, theirs = (
            module.random_subset(key, n, min(n, k), CPU) for module in (kernels.subsets.on(CPU), permutation)
        )
        assert mine.dtype == torch.int64
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("n", [40, 1000, 4097])
def test_subsets_are_drawn_uniformly(n: int) -> None:
    """Chi-square of how often each coordinate is drawn, and of how many fall together into each tenth of the row.

    Each is within five standard deviations of its mean: a true uniform drawing fails once in a million seeds.
    """
    k, trials = n // 10, 3000
    counts, tenths = np.zeros(n), np.zeros((10, 10))
    for trial in range(trials):
        drawn = kernels.subsets.on(CPU).random_subset((trial, 77), n, k, CPU).numpy()
        counts[drawn] += 1
        first, second = np.random.default_rng(trial).choice(drawn, 2, replace=False) * 10 // n
        tenths[first, second] += 1
    chi = ((counts - trials * k / n) ** 2 / (trials * k / n * (1 - k / n))).sum()
    assert abs(chi - (n - 1)) < 5 * math.sqrt(2 * (n - 1))
    sizes = np.bincount(np.arange(n) * 10 // n)
    expected = trials * (np.outer(sizes, sizes) - np.diag(sizes)) / n / (n - 1)
    pairs = ((tenths - expected) ** 2 / expected).sum()
    assert abs(pairs - 99) < 5 * math.sqrt(2 * 99)
