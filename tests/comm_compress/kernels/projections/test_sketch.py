"""Count-sketches: the textbook's, linear, with the errors of theory, and the same bytes from every implementation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from comm_compress import kernels
from comm_compress.kernels.projections.sketch import cpu as sketch_cpu, reference as sketch_reference
from tests.comm_compress.methods.projections.samples import normal

CPU = torch.device("cpu")


SKETCH = kernels.sketch.on(CPU)


KEYS = [(17, 4), (5, 2**32 - 1), (2**31, 9), (1, 1), (0, 0)]


def sketched(module: Any, rows: Tensor, keys: list[tuple[int, int]], columns: int) -> Tensor:
    out = torch.full((rows.shape[0], len(keys), columns), math.nan)
    module.count_sketch(rows, keys, out)
    return out


def estimated(module: Any, sketch: Tensor, keys: list[tuple[int, int]], n: int) -> Tensor:
    out = torch.full((n,), math.nan)
    module.estimate(sketch, keys, out)
    return out


@settings(max_examples=30, deadline=None)
@given(
    n=st.sampled_from([0, 1, 2, 7, 31, 32, 33, 1023, 1024, 1025, 5000]),
    rows=st.integers(0, 3),
    columns=st.sampled_from([32, 64, 1024, 4096]),
    num_keys=st.sampled_from([1, 3, 5]),
    seed=st.integers(0, 100),
    threads=st.integers(1, 3),
)
def test_sketch_kernels_give_the_references_bytes(
    n: int, rows: int, columns: int, num_keys: int, seed: int, threads: int
) -> None:
    x, keys = normal(rows, n, seed=seed) ** 3, KEYS[:num_keys]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        mine, theirs = (sketched(module, x, keys, columns) for module in (sketch_cpu, sketch_reference))
        assert mine.numpy().tobytes() == theirs.numpy().tobytes()
        for sketch in mine:
            ours, expected = (estimated(module, sketch, keys, n) for module in (sketch_cpu, sketch_reference))
            assert ours.numpy().tobytes() == expected.numpy().tobytes()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_a_sketch_and_change_nothing(threads: int) -> None:
    x = normal(2, 300_007)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        sketch = sketched(sketch_cpu, x, KEYS, 3200)
        estimate = estimated(sketch_cpu, sketch[1], KEYS, 300_007)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(sketch, sketched(sketch_reference, x, KEYS, 3200))
    assert torch.equal(estimate, estimated(sketch_reference, sketch[1], KEYS, 300_007))


def test_the_count_sketch_is_the_textbooks() -> None:
    """One coordinate at a time: a unit vector lands in one column of each row with a sign, and is found again."""
    n, columns = 500, 64
    keys, x = KEYS[:3], normal(1, n)
    columns_of = torch.stack(
        [sketched(SKETCH, e.view(1, -1), keys, columns)[0] for e in torch.eye(n)]
    )  # [n, 3, columns]
    assert torch.equal(columns_of.abs().sum(-1), torch.ones(n, 3))
    torch.testing.assert_close(sketched(SKETCH, x, keys, columns)[0], torch.einsum("i,ijc->jc", x[0], columns_of))
    sketch = normal(3, columns, seed=1)
    expected = torch.einsum("jc,ijc->ij", sketch, columns_of).median(1).values
    torch.testing.assert_close(estimated(SKETCH, sketch, keys, n), expected)


def test_hashes_are_uniform_and_signs_are_fair_and_independent() -> None:
    """Chi-square of bucket counts, and of sign times bucket, each within five standard deviations of its mean.

    Coordinates of a block never meet, so their places vary less than independent ones: one of each block is counted.
    """
    n, columns = 3_200_000, 128
    places, signs = (t[5::32] for t in sketch_reference._places((3, 4), n, columns, torch.device("cpu")))
    other, other_signs = (t[5::32] for t in sketch_reference._places((3, 5), n, columns, torch.device("cpu")))
    count = places.numel()
    for cells, size in [(places, 128), (places * 2 + (signs > 0), 256), (places // 16 * 8 + other // 16, 64)]:
        counts = torch.bincount(cells.long(), minlength=size).double()
        chi = float(((counts - count / size) ** 2 / (count / size)).sum())
        assert abs(chi - (size - 1)) < 5 * math.sqrt(2 * (size - 1))
    assert abs(float(signs.mean())) < 5 / math.sqrt(count)
    assert abs(float((signs * other_signs).mean())) < 5 / math.sqrt(count)


@pytest.mark.parametrize("columns", [32, 256])
def test_two_coordinates_meet_once_in_as_many_hashes_as_there_are_columns(columns: int) -> None:
    """Neighbours, coordinates at the same place of their blocks, and others; 16,000 pairs of each in 40 functions.

    Within five standard deviations of 1 / columns and never in one block; signs that meet agree half of the time.
    """
    pairs, draws, offsets = 16_000, 40, (1, 5, 31, 32, 33, 64, 1000)
    first = torch.arange(pairs)
    met, agree = dict.fromkeys(offsets, 0), dict.fromkeys(offsets, 0.0)
    for draw in range(draws):
        places, signs = sketch_reference._places((draw, 9), pairs + 1000, columns, torch.device("cpu"))
        for offset in offsets:
            meet = places[first] == places[first + offset]
            assert not (meet & (first // 32 == (first + offset) // 32)).any()
            met[offset] += int(meet.sum())
            agree[offset] += float((signs[first] * signs[first + offset])[meet].sum())
    for offset in offsets:
        strangers = int((first // 32 != (first + offset) // 32).sum()) * draws
        # pairs of the same two blocks meet together, up to 32 at a time: as many times the variance
        assert abs(met[offset] - strangers / columns) <= 5 * math.sqrt(32 * strangers / columns)
        assert abs(agree[offset]) <= 5 * math.sqrt(met[offset] + 1)


@settings(max_examples=20, deadline=None)
@given(a=st.floats(-4, 4), b=st.floats(-4, 4), seed=st.integers(0, 100))
def test_sketches_are_linear(a: float, b: float, seed: int) -> None:
    x, y = normal(1, 3000, seed=seed), normal(1, 3000, seed=seed + 1)
    mixed = sketched(SKETCH, a * x + b * y, KEYS, 96)
    separate = a * sketched(SKETCH, x, KEYS, 96) + b * sketched(SKETCH, y, KEYS, 96)
    torch.testing.assert_close(mixed, separate, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("columns", [64, 416])
def test_estimates_err_as_the_theory_says(columns: int) -> None:
    """One row errs by Chebyshev more than t ||x|| / sqrt(C) with probability at most 1 / t^2: at t = 3 a ninth. A
    median of five errs only if three do: at most sum_{i>=3} binom(5, i) (1/9)^i (8/9)^(5-i) = 1.2 %. And each
    row's estimate is unbiased with variance at most ||x||^2 / C. Measured over 40 draws x 2000 coordinates."""
    n, draws = 2000, 40
    x = normal(n) ** 3
    singles, medians = [], []
    for draw in range(draws):
        keys = [(draw, j) for j in range(5)]
        sketch = sketched(SKETCH, x.view(1, -1), keys, columns)[0]
        medians.append(estimated(SKETCH, sketch, keys, n) - x)
        singles.append(estimated(SKETCH, sketch[:1], keys[:1], n) - x)
    bound = 3 * float(x.norm()) / math.sqrt(columns)
    single, median = torch.stack(singles).double(), torch.stack(medians)
    assert float((single.abs() > bound).double().mean()) <= 1 / 9
    assert float((median.abs() > bound).double().mean()) <= 0.012
    variance = float(x.double().norm() ** 2) / columns
    assert 0.7 * variance < float((single**2).mean()) < 1.3 * variance
    assert abs(float(single.mean())) < 5 * math.sqrt(variance / draws)  # coordinates of one draw are dependent
