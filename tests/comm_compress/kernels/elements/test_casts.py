"""Floats as whole numbers and back: the CPU's kernels give the reference's numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from comm_compress.kernels.elements.casts import cpu as casts_cpu, reference as casts_reference


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
