"""Unbiased gradient sparsification: each element survives with a probability of its own. arXiv:1710.09854."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import comm_compress as cc


@dataclass(frozen=True)
class GsparConfig:
    """``ratio``: the share of a row's elements that survives on average."""

    ratio: float = 0.1

    def __post_init__(self) -> None:
        cc.require(0 < self.ratio <= 1, "ratio", self.ratio, "above 0 and at most 1")


@cc.register("gspar", GsparConfig)
class Gspar(cc.Codec):
    """An element x survives with probability min(1, c |x|), and is then sent as x over that probability.

    Rows differ in length: the number of survivors is random. Source: Wangni et al., arXiv:1710.09854
    """

    traits = cc.Traits(unbiased=True, sparse=True)
    fixed_size = False

    def __init__(self, config: GsparConfig) -> None:
        self.ratio = config.ratio

    def encode(self, rows: Tensor, state: cc.State) -> cc.Encoded:
        key = state.key("gspar")
        generator = torch.Generator().manual_seed(key.high << 32 | key.low)
        parts = []
        for row in rows.float():
            probability = self._probabilities(row)
            kept = torch.rand(row.numel(), generator=generator) < probability
            kept |= ~row.isfinite()
            places = kept.nonzero().flatten().to(torch.int32)
            values = (row / torch.where(row.isfinite(), probability, 1.0))[kept]
            count = cc.ByteCount(4 * values.numel(), 4 * places.numel(), 0)
            parts.append(cc.RaggedRow([places.view(torch.uint8), values.contiguous().view(torch.uint8)], count))
        return cc.Encoded.ragged(parts, rows.shape[1])

    def _probabilities(self, row: Tensor) -> Tensor:
        """The paper's greedy algorithm: elements whose probability would pass 1 are certain, the rest shares."""
        size = row.abs().nan_to_num(0.0, 0.0, 0.0)
        probability = torch.zeros_like(size)
        for _ in range(3):
            certain = probability >= 1
            left = max(self.ratio * row.numel() - float(certain.sum()), 0.0)
            rest = size.masked_fill(certain, 0.0).sum()
            if float(rest) == 0:
                break
            probability = torch.where(certain, 1.0, (size * (left / rest)).clamp_max(1.0))
        return torch.where(size > 0, probability.clamp_min(1e-6), 0.0)

    def decode(self, encoded: cc.Encoded) -> Tensor:
        rows = torch.zeros(encoded.num_rows, encoded.n)
        for r in range(encoded.num_rows):
            data = encoded.row(r)
            half = data.numel() // 2
            if half:
                rows[r, data[:half].clone().view(torch.int32).long()] = data[half:].clone().view(torch.float32)
        return rows
