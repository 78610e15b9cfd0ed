"""Count-sketches in plain torch operations: the definition that `cpu.sketch` must match bit for bit.

The hash function takes blocks of 32 coordinates at a time, so that a sketch is made of whole vectors: block b goes to
a random one of the windows of 32 columns, rotated by a random number of places,

    h(i) = 32 H(b) + ((i + R(b)) mod 32),    s(i) = +1 or -1 by bit (i mod 32) of S(b),    b = floor(i / 32)

with one hash for H and R and another for the 32 bits of S. What Count-Sketch asks of its functions (Charikar, Chen and
Farach-Colton, ICALP 2002) is that two coordinates meet with probability 1 / columns at most, and that signs are
independent in pairs. Both hold: coordinates of different blocks are in one window with probability 32 / columns and
there in one column with probability 1 / 32, both drawn independently of the other block's; those of one block never
meet; and all signs are bits of their own. So the estimate of x_i by a single function,
x_i + sum of s(i) s(i') x_i' over those that meet it, is unbiased, with variance of at most ||x||^2 / columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from comm_compress.kernels.reference.random import random_bits

WINDOW = 32  # columns; and coordinates hashed together


def _places(key: tuple[int, int], n: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Column, int64 ``[n]``, and sign, float32 ``[n]``, of n coordinates. ``columns`` is a multiple of 32."""
    words = random_bits(key, 2 * -(-n // WINDOW), device).view(-1, 2)
    signs, where = words[:, :1], words[:, 1:]
    inside = torch.arange(WINDOW, dtype=torch.int32, device=device)
    windows = ((where.long() & 0xFFFFFFFF) * (columns // WINDOW)) >> 32
    places = windows * WINDOW + ((inside + where) & (WINDOW - 1))
    return places.flatten()[:n], (1 - 2 * ((signs >> inside) & 1).float()).flatten()[:n]


def count_sketch(rows: Tensor, keys: Sequence[tuple[int, int]], out: Tensor) -> None:
    """The count-sketch of each row of ``rows`` float32 ``[R, n]``, to ``out`` float32 ``[R, len(keys), columns]``.

    Each key names a function h from coordinates to columns and a sign function; every coordinate is added, with its
    sign, to its column, in ascending order (on CUDA in any order: sums may differ by rounding).
    """
    out.zero_()
    for j, key in enumerate(keys):
        places, signs = _places(key, rows.shape[1], out.shape[2], rows.device)
        for row, sketch in zip(rows, out[:, j], strict=True):
            sketch.index_add_(0, places, row * signs)


def count_sketch_estimate(sketch: Tensor, keys: Sequence[tuple[int, int]], out: Tensor) -> None:
    """The median over hash functions of each coordinate's signed column, to ``out`` float32 ``[n]``.

    ``sketch``: float32 ``[len(keys), columns]``, finite; an odd number of ``keys``. Zero has no sign.
    """
    estimates = []
    for key, row in zip(keys, sketch, strict=True):
        places, signs = _places(key, out.numel(), row.numel(), sketch.device)
        estimates.append(row[places] * signs)
    torch.add(torch.stack(estimates).median(0).values, 0.0, out=out)
