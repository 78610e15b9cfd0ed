"""Counting and finding bytes in vectors: what numpy counts and finds one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from comm_compress.kernels.coding.entropy import cpu as entropy, reference
from comm_compress.kernels.coding.loops.counting import LOOKED_AT, PIECE
from comm_compress.kernels.coding.rans_stream import BLOCK
from comm_compress.kernels.coding.ulp import cpu as ulp_cpu, reference as ulp_reference

SIZES = [0, 1, 63, LOOKED_AT, PIECE + 65, 3 * PIECE - 7, BLOCK + 100]


def octets(n: int, kind: str) -> torch.Tensor:
    """Bytes that are counted in one of the ways, or begin as if they were to be counted in another."""
    random = np.random.default_rng(n)
    numbers = {
        "near zero": random.normal(0, 2, n),
        "near their largest": 200 - random.geometric(0.4, n),
        "beyond their first largest": np.where(np.arange(n) < LOOKED_AT, 90, 100) - random.geometric(0.4, n),
        "everywhere": random.integers(0, 256, n),
        "near zero at first": np.where(np.arange(n) % PIECE < LOOKED_AT, 0, random.integers(0, 256, n)),
        "wrapping around": random.geometric(0.4, n) % 3 + 254,
    }
    return torch.from_numpy(numbers[kind].astype(np.int64).astype(np.uint8))


KINDS = (
    "near zero",
    "near their largest",
    "beyond their first largest",
    "everywhere",
    "near zero at first",
    "wrapping around",
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_is_counted_once(kind: str) -> None:
    for n in SIZES:
        symbols = octets(n, kind)
        assert np.array_equal(entropy.histogram(symbols, None, 1)[0], np.bincount(symbols.numpy(), minlength=256)), n


@pytest.mark.parametrize("contexts", [1, 3, 16, 200])
def test_bytes_are_counted_and_found_by_context(contexts: int) -> None:
    for n in SIZES:
        random = np.random.default_rng(n + contexts)
        symbols = torch.from_numpy(random.geometric(0.2, n).clip(max=255).astype(np.uint8))
        of_each = torch.from_numpy(random.integers(0, contexts, n).astype(np.uint8))
        counts = entropy.histogram(symbols, of_each, contexts)
        assert np.array_equal(counts, reference.histogram(symbols, of_each, contexts)), n
        # from some symbol on, none, all, and here and there
        marked = np.arange(256) >= random.integers(0, 40, contexts)[:, None]
        marked[random.integers(0, contexts)] = random.integers(0, 2)
        marked[random.integers(0, contexts)] = random.random(256) < 0.5
        number = int(counts[marked].sum())
        wanted = reference.find(symbols, of_each, marked, number)
        assert torch.equal(entropy.find(symbols, of_each, marked, number), wanted), n


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_exponents_are_counted_and_looked_up(dtype: torch.dtype) -> None:
    table = torch.from_numpy(np.random.default_rng(0).permutation(256).astype(np.uint8))
    for n in SIZES:
        values = (torch.randn(n, generator=torch.Generator().manual_seed(n)) * 0.02).to(dtype)
        assert torch.equal(ulp_cpu.exponent_counts(values), ulp_reference.exponent_counts(values)), n
        ours, theirs = torch.empty(2, n, dtype=torch.uint8)
        ulp_cpu.by_exponent(values, table, ours)
        assert torch.equal(ours, ulp_reference.by_exponent(values, table, theirs)), n
