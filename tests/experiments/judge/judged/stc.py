"""Sparse ternary compression: the largest elements, all with one size. Sattler et al. 2019, arXiv:1903.02891."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import comm_compress as cc


@dataclass(frozen=True)
class StcConfig:
    """``ratio``: the share of a row's elements that is sent."""

    ratio: float = 0.01

    def __post_init__(self) -> None:
        cc.require(0 < self.ratio <= 1, "ratio", self.ratio, "above 0 and at most 1")


@cc.register("stc", StcConfig, error_feedback=True)
class Stc(cc.Codec):
    """The k largest elements of a row, each as its sign times the mean size of all k.

    Source: Robust and communication-efficient federated learning from non-IID data, arXiv:1903.02891
    """

    traits = cc.Traits(sparse=True)

    def __init__(self, config: StcConfig) -> None:
        self.ratio = config.ratio

    def layout(self, n: int, dtype: torch.dtype) -> cc.Layout:
        k = min(n, max(1, round(self.ratio * n)))
        return cc.Layout(
            cc.Field("places", torch.int32, k, "indices"),
            cc.Field("size", torch.float32, 1, "metadata"),
            cc.Field("signs", torch.uint8, (k + 7) // 8, "values"),
        )

    def encode(self, rows: Tensor, state: cc.State) -> cc.Encoded:
        out = state.message(rows, self.layout(rows.shape[1], rows.dtype))
        rows = rows.float()
        k = out["places"].shape[1]
        places = rows.abs().nan_to_num(torch.inf).topk(k, 1).indices
        kept = rows.gather(1, places)
        out["places"].copy_(places)
        out["size"].copy_(kept.abs().mean(1, keepdim=True) if k else rows.new_zeros(len(rows), 1))
        bits = torch.nn.functional.pad((kept < 0).to(torch.uint8), (0, -k % 8)).view(len(rows), -1, 8)
        out["signs"].copy_((bits << torch.arange(8, dtype=torch.uint8)).sum(2, dtype=torch.uint8))
        return out

    def decode(self, encoded: cc.Encoded) -> Tensor:
        places = encoded["places"].long()
        bits = encoded["signs"].unsqueeze(2) >> torch.arange(8, dtype=torch.uint8) & 1
        signs = 1.0 - 2.0 * bits.flatten(1)[:, : places.shape[1]].float()
        rows = torch.zeros(encoded.num_rows, encoded.n)
        return rows.scatter_(1, places, signs * encoded["size"])
