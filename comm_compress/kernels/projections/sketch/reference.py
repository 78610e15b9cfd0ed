"""Count-sketches: the definition in torch operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from comm_compress.kernels.elements.random.reference import random_bits

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
    out.zero_()
    for j, key in enumerate(keys):
        places, signs = _places(key, rows.shape[1], out.shape[2], rows.device)
        for row, sketch in zip(rows, out[:, j], strict=True):
            sketch.index_add_(0, places, row * signs)


def estimate(sketch: Tensor, keys: Sequence[tuple[int, int]], out: Tensor) -> None:
    estimates = []
    for key, row in zip(keys, sketch, strict=True):
        places, signs = _places(key, out.numel(), row.numel(), sketch.device)
        estimates.append(row[places] * signs)
    torch.add(torch.stack(estimates).median(0).values, 0.0, out=out)
