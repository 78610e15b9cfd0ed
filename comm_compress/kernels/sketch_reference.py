"""Count-sketches in plain torch operations: the definition that `sketch_cpu` must match bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from comm_compress.kernels.random_reference import random_bits


def _places(key: tuple[int, int], n: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The bucket (upper bits of a 32-bit hash, scaled to ``columns``) and the sign (lowest bit) of n coordinates."""
    words = random_bits(key, n, device)
    buckets = ((words.long() & 0xFFFFFFFF) * columns) >> 32
    return buckets, 1 - 2 * (words & 1).float()


def count_sketch(rows: Tensor, keys: Sequence[tuple[int, int]], columns: int) -> Tensor:
    """float32 ``[R, len(keys), columns]``: the count-sketch of each row of ``rows`` (float ``[R, n]``).

    Each key names a hash function h from coordinates to columns and a sign function; every coordinate is added,
    with its sign, to its column, in ascending order (on CUDA in any order: sums may differ by rounding).
    """
    num_rows, n = rows.shape
    out = torch.zeros(num_rows, len(keys), columns, device=rows.device)
    for j, key in enumerate(keys):
        buckets, signs = _places(key, n, columns, rows.device)
        for row, sketch in zip(rows, out[:, j], strict=True):
            sketch.index_add_(0, buckets, row.float() * signs)
    return out


def count_sketch_estimate(sketch: Tensor, keys: Sequence[tuple[int, int]], n: int) -> Tensor:
    """float32 ``[n]``: the median over hash functions of each coordinate's signed column.

    ``sketch``: float32 ``[len(keys), columns]``, finite; an odd number of ``keys``. Zero has no sign.
    """
    estimates = []
    for key, row in zip(keys, sketch, strict=True):
        buckets, signs = _places(key, n, row.numel(), sketch.device)
        estimates.append(row[buckets] * signs)
    return torch.stack(estimates).median(0).values + 0.0
