"""Strings of bits with few ones as numba kernels: the reference's bytes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.numba_tools import Array, compiled


def mark_bits(places: Tensor, bitmap: Tensor) -> None:
    """As `bitmap_reference.mark_bits`, for CPU tensors."""
    bitmap.zero_()
    for row, target in zip(places, bitmap, strict=True):
        _mark(row.contiguous().numpy(), target.numpy())


def marked_bits(bitmap: Tensor, k: int) -> Tensor:
    """As `bitmap_reference.marked_bits`, for CPU bytes."""
    places = torch.empty(bitmap.shape[0], k + 8, dtype=torch.int32)  # bytes are read whole, past the k-th one
    for source, row in zip(bitmap.contiguous(), places, strict=True):
        found = _marked(source.numpy(), k, row.numpy())
        assert found >= k, f"{found} bits of {k} are set"
    return places[:, :k]


@compiled
def _mark(places: Array, bitmap: Array) -> None:
    for i in range(places.size):
        bitmap[places[i] >> 3] |= np.uint8(1 << (places[i] & 7))


@compiled
def _marked(bitmap: Array, k: int, places: Array) -> int:
    count = 0
    for i in range(bitmap.size):
        if count >= k:
            break
        for bit in range(8):  # without a branch: bits are too irregular to predict
            places[count] = 8 * i + bit
            count += (bitmap[i] >> bit) & 1
    return count
