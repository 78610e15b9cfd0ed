"""Bitmaps of positions: numpy's packbits, and back."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

from comm_compress import kernels
from comm_compress.kernels.packing.bitmap import reference as bitmap_reference
from tests.comm_compress.methods.sparsifiers.samples import CPU


@settings(max_examples=40, deadline=None)
@given(bits=st.integers(1, 300), share=st.floats(0, 1), seed=st.integers(0, 100))
def test_bitmaps_are_numpys_packbits_and_come_back(bits: int, share: float, seed: int) -> None:
    k = round(share * bits)
    chosen = np.random.default_rng(seed).permuted(np.tile(np.arange(bits), (2, 1)), axis=1)[:, :k]
    places = torch.from_numpy(np.sort(chosen, 1).astype(np.int32))
    flags = np.zeros((2, bits), np.uint8)
    np.put_along_axis(flags, chosen, 1, 1)
    expected = np.packbits(flags, 1, bitorder="little")
    for module in (kernels.bitmap.on(CPU), bitmap_reference):
        bitmap = torch.full(expected.shape, 255, dtype=torch.uint8)
        module.mark_bits(places, bitmap)
        assert np.array_equal(bitmap.numpy(), expected)
        assert torch.equal(module.marked_bits(bitmap, k), places)
