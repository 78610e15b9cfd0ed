"""Rows to choose from, positions to code, and what numpy would choose."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from comm_compress.core.compressor import Codec
from comm_compress.core.state import State

CPU = torch.device("cpu")


def normal(rows: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(seed))


def state(world: int = 1, rank: int = 0) -> State:
    fresh = State("unit", rank, world)
    fresh.begin()
    return fresh


def round_trip(compressor: Codec, rows: Tensor) -> Tensor:
    return compressor.decode(compressor.encode(rows, state(rows.shape[0]))).float()


def top_by_numpy(row: np.ndarray, k: int) -> np.ndarray:
    """Ascending positions of the k largest magnitudes, NaN first, then by lowest index."""
    magnitude = np.where(np.isnan(row), np.inf, np.abs(row))
    return np.sort(np.lexsort((np.arange(row.size), -magnitude, ~np.isnan(row)))[:k])


def positions(n: int, k: int, seed: int, clustered: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    start = int(torch.randint(0, n - k + 1, (), generator=generator)) if clustered else 0
    chosen = start + torch.arange(k) if clustered else torch.randperm(n, generator=generator)[:k].sort().values
    return chosen.int().unsqueeze(0)
