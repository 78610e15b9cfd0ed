"""Rows cut into tiles of a power of two, and the Hadamard transform of whole tiles."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from comm_compress.registry import require


def require_power_of_two(key: str, size: int, least: int, most: int) -> None:
    """Refuse a ``size`` that the Hadamard transform does not have, or outside of these limits."""
    good = least <= size <= most and size & (size - 1) == 0
    require(good, key, size, f"a power of two between {least} and {most}")


def count_tiles(n: int, size: int) -> int:
    """Return how many tiles a row of ``n`` elements is cut into; the last may be short."""
    return math.ceil(n / size)


def in_tiles(rows: Tensor, size: int) -> Tensor:
    """Float32 ``[R, tiles, size]`` of ``rows`` ``[R, n]``, the last tile filled up with zeros."""
    num_rows, n = rows.shape
    return F.pad(rows.float(), (0, -n % size)).view(num_rows, count_tiles(n, size), size)


def hadamard(tiles: Tensor) -> Tensor:
    """The last dimension of ``tiles``, a power of two, times the normalised Hadamard matrix, which is its own inverse.

    Sylvester's order. Elements are divided by the root of the size first, so that only what is larger than float32's
    largest number over that root can overflow; then they are added and subtracted over distances 1, 2, 4, and so on.
    """
    shape, size = tiles.shape, tiles.shape[-1]
    x: Tensor = tiles * float(size) ** -0.5
    distance = 1
    while distance < size:
        x = x.view(-1, size // (2 * distance), 2, distance)
        a, b = x.unbind(2)
        pairs = x.new_empty(x.shape)
        pairs[:, :, 0], pairs[:, :, 1] = a + b, a - b
        x = pairs
        distance *= 2
    return x.view(shape)
