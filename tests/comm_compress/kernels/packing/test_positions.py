"""Codes of positions: the CPU's kernels give the reference's bytes."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

from comm_compress import kernels
from comm_compress.kernels.packing.positions import reference as positions_reference
from tests.comm_compress.methods.sparsifiers.samples import CPU, positions


@settings(max_examples=60, deadline=None)
@given(
    n=st.sampled_from([1, 2, 255, 5000, 1 << 20]),
    share=st.floats(0, 1),
    low=st.integers(0, 30),
    gaps=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_positions_are_the_references_bytes(n: int, share: float, low: int, gaps: bool, seed: int) -> None:
    k = max(1, round(share * min(n, 3000)))
    indices = torch.cat([positions(n, k, seed), positions(n, k, seed + 1)])
    steps = positions_reference.gap_steps(indices[:1], 8)
    assert kernels.positions(indices).gap_steps(indices[:1], 8) == steps
    assert steps == [sum(int(gap) - 1 >> b for gap in np.diff(indices[0].numpy(), prepend=-1)) for b in range(8)]
    strings = [torch.full((2, size), 255, dtype=torch.uint8) for size in (-(-(k + (n >> low)) // 8), -(-k * low // 8))]
    expected = [string.clone() for string in strings]
    kernels.positions(indices).encode(indices, low, gaps, *strings)
    positions_reference.encode(indices, low, gaps, *expected)
    for mine, theirs in zip(strings, expected, strict=True):
        assert torch.equal(mine, theirs)
    for module in (kernels.positions.on(CPU), positions_reference):
        assert torch.equal(module.decode(*strings, low, gaps, k), indices)
