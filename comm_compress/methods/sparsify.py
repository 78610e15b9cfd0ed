"""Sparsifiers: send a few coordinates, keep the rest for later."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.compressor import Codec
from comm_compress.encoded import Encoded, Field, Layout
from comm_compress.registry import register, require
from comm_compress.state import State


@dataclass(frozen=True)
class TopKConfig:
    """Settings of topk: ``k`` elements of every destination row, or ``ratio`` of them (at least one)."""

    ratio: float = 0.01
    k: int | None = None

    def __post_init__(self) -> None:
        require(0 < self.ratio <= 1, "ratio", self.ratio, "above 0 and at most 1")
        require(self.k is None or self.k > 0, "k", self.k, "positive")


@register("topk", TopKConfig, error_feedback=True)
class TopK(Codec):
    """Send the k elements of largest magnitude with their positions (MEM-SGD, arXiv 1809.07599).

    ||x - C(x)||^2 <= (1 - k / n) ||x||^2; biased, and useless for training without error feedback,
    which is therefore on by default. k is taken per destination row: row sizes are fixed and
    positions are row-local. 64 bits a kept element: float32 value, int32 index, ascending. NaN ranks
    above everything, so it is sent and seen.
    """

    def __init__(self, config: TopKConfig) -> None:
        self.ratio, self.k = config.ratio, config.k

    def kept(self, n: int) -> int:
        """How many of ``n`` elements are sent."""
        wanted = self.k if self.k is not None else max(1, round(self.ratio * n))
        return min(wanted, n)

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """k values, k indices."""
        k = self.kept(n)
        return Layout(Field("values", torch.float32, k, "values"), Field("indices", torch.int32, k, "indices"))

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Select and gather."""
        n = rows.shape[1]
        out = Encoded.empty(rows.shape[0], n, self.layout(n, rows.dtype), rows.device)
        kernels.topk(rows, self.kept(n), out["values"], out["indices"])
        return out

    def decode(self, encoded: Encoded) -> Tensor:
        """Dense rows, zero where nothing was sent."""
        rows = torch.zeros(encoded.num_rows, encoded.n, device=encoded.buffer.device)
        return rows.scatter_(1, encoded["indices"].long(), encoded["values"])

    def decode_sum(self, encoded: Encoded) -> Tensor:
        """Scatter-add row after row: the order of sums is the order of ranks."""
        total = torch.zeros(encoded.n, device=encoded.buffer.device)
        for values, indices in zip(encoded["values"], encoded["indices"], strict=True):
            total.index_add_(0, indices, values)
        return total

    def subtract_contribution(self, target: Tensor, sent: Encoded) -> Tensor:
        """What was sent was sent exactly: those places become zero."""
        return target.scatter_(1, sent["indices"].long(), 0)
