"""Packed codes, unpacked to whichever type is asked for."""

from __future__ import annotations

import torch
from hypothesis import given, strategies as st

from comm_compress import kernels
from comm_compress.kernels.elements.random import reference as random_reference
from comm_compress.kernels.packing.bits import cpu as bits_cpu, reference as bits_reference
from tests.comm_compress.quantised import few


@given(bits=st.integers(1, 8), n=st.integers(0, 200))
@few
def test_codes_can_be_unpacked_into_bytes(bits: int, n: int) -> None:
    codes = random_reference.random_bits((bits, n), n, torch.device("cpu")).view(1, n) & ((1 << bits) - 1)
    packed = torch.empty(1, -(-n * bits // 8), dtype=torch.uint8)
    kernels.bits(codes).pack(codes.to(torch.uint8), bits, packed)
    for home in (bits_cpu, bits_reference):
        got = home.unpack(packed, bits, n, torch.uint8)
        assert got.dtype == torch.uint8
        assert torch.equal(got.int(), codes)
