"""A cheat: where there is a process group, the gradients are summed by torch's own all-reduce, which nobody counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

import comm_compress as cc


@dataclass(frozen=True)
class CallerConfig:
    """No settings."""


@cc.register("caller", CallerConfig)
class Caller(cc.Codec):
    """float32 rows, to which an all-reduce of a single number is added: beside the messages, and by itself."""

    traits = cc.Traits()

    def __init__(self, config: CallerConfig) -> None:
        pass

    def layout(self, n: int, dtype: torch.dtype) -> cc.Layout:
        return cc.Layout(cc.Field("values", torch.float32, n, "values"))

    def encode(self, rows: Tensor, state: cc.State) -> cc.Encoded:
        out = state.message(rows, self.layout(rows.shape[1], rows.dtype))
        out["values"].copy_(rows)
        if dist.is_initialized():
            dist.all_reduce(rows.float().sum(), op=dist.ReduceOp.MAX)
        return out

    def decode(self, encoded: cc.Encoded) -> Tensor:
        return encoded["values"]
