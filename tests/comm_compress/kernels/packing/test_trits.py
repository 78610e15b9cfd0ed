"""Five values of three in a byte: they come back, and the CPU's kernels give the reference's bytes."""

from __future__ import annotations

import torch
from hypothesis import given, strategies as st

from comm_compress.kernels.elements.random import reference as random_reference
from comm_compress.kernels.packing.trits import cpu as trits_cpu, reference as trits_reference
from tests.comm_compress.quantised import some


@some
@given(n=st.integers(0, 400), seed=st.integers(0, 100))
def test_trits_come_back_and_are_the_references(n: int, seed: int) -> None:
    codes = (
        (random_reference.random_bits((seed, n), 2 * n, torch.device("cpu")).view(2, n) % 3 - 1)
        .clamp(-1, 1)
        .to(torch.int8)
    )
    mine, theirs = (torch.full((2, -(-n // 5)), 7, dtype=torch.uint8) for _ in range(2))
    trits_cpu.pack(codes, mine)
    trits_reference.pack(codes, theirs)
    assert torch.equal(mine, theirs)
    for byte, start in zip(mine[0].tolist(), range(0, n, 5), strict=True):
        assert byte == sum((c + 1) * 3**i for i, c in enumerate(codes[0, start : start + 5].tolist()))
    assert torch.equal(trits_cpu.unpack(mine, n), codes)
    assert torch.equal(trits_reference.unpack(mine, n), codes)
