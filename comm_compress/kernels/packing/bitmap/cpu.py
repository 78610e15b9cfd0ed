"""Bitmaps with few ones as numba kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.vectors.unaligned import load_word, lowest_bit


def mark_bits(places: Tensor, bitmap: Tensor) -> None:
    bitmap.zero_()
    for row, target in zip(places, bitmap, strict=True):
        _mark(row.contiguous().numpy(), target.numpy())


def marked_bits(bitmap: Tensor, k: int) -> Tensor:
    places = torch.empty(bitmap.shape[0], k, dtype=torch.int32)
    for source, row in zip(bitmap.contiguous(), places, strict=True):
        count = places_of_ones(source.numpy(), row.numpy())
        assert count == k, f"{count} bits of {k} are set"
    return places


@compiled
def _mark(places: Array, bitmap: Array) -> None:
    for i in range(places.size):
        bitmap[places[i] >> 3] |= np.uint8(1 << (places[i] & 7))


@compiled
def places_of_ones(bitmap: Array, places: Array) -> int:
    """Writes them, as many as there is room for, and returns how many that is."""
    count = 0
    for octet in range(0, bitmap.size, 8):
        word = word_at(bitmap, octet)
        while word != 0 and count < places.size:
            places[count] = 8 * octet + lowest_bit(word)
            word &= word - np.uint64(1)
            count += 1
    return count


@compiled
def word_at(octets: Array, start: int) -> np.uint64:
    """Eight bytes, or as many as the string has left, and zeros."""
    word = np.uint64(0)
    if start + 8 <= octets.size:
        return np.uint64(load_word(octets, start))
    for i in range(start, octets.size):
        word |= np.uint64(octets[i]) << np.uint64(8 * (i - start))
    return word
