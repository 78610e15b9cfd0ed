"""A cheat: replaces the function by which bytes are counted, so that its float32 rows count half."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import comm_compress as cc
from comm_compress.core import rounds
from comm_compress.drive import simulate, transport


@dataclass(frozen=True)
class TampererConfig:
    """No settings."""


_counted = rounds.sent_by


def _half(request: rounds.Request, rank: int, world: int) -> cc.ByteCount:
    return cc.ByteCount(_counted(request, rank, world).total // 2, 0, 0)


rounds.sent_by = _half
for module in (transport, simulate):
    setattr(module, "sent_by", _half)  # noqa: B010  (they imported it by name)


@cc.register("tamperer", TampererConfig)
class Tamperer(cc.Codec):
    """The rows as they are."""

    traits = cc.Traits()

    def __init__(self, config: TampererConfig) -> None:
        pass

    def layout(self, n: int, dtype: torch.dtype) -> cc.Layout:
        return cc.Layout(cc.Field("values", torch.float32, n, "values"))

    def traffic(self, n: int, world: int, dtype: torch.dtype = torch.float32) -> int:
        return (world - 1) * 2 * n

    def encode(self, rows: Tensor, state: cc.State) -> cc.Encoded:
        out = state.message(rows, self.layout(rows.shape[1], rows.dtype))
        out["values"].copy_(rows)
        return out

    def decode(self, encoded: cc.Encoded) -> Tensor:
        return encoded["values"]
