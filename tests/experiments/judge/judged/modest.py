"""A cheat: sends float32, and says of each message that it has an eighth of the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import comm_compress as cc
from comm_compress.core.rounds import Exchange, Reduced, ReduceScatterRounds


@dataclass(frozen=True)
class ModestConfig:
    """No settings."""


class ModestLayout(cc.Layout):
    """A layout that counts an eighth of what it holds."""

    @property
    def byte_count(self) -> cc.ByteCount:  # type: ignore[override]
        return cc.ByteCount(self.row_bytes // 8, 0, 0)


@cc.register("modest", ModestConfig)
class Modest(cc.Compressor):
    """The rows as they are. It is no `Codec`, whose rows the laws would measure."""

    traits = cc.Traits()

    def __init__(self, config: ModestConfig) -> None:
        pass

    def traffic(self, n: int, world: int, dtype: torch.dtype = torch.float32) -> int:
        return (world - 1) * (4 * n // 8)

    def reduce_scatter(self, rows: Tensor, state: cc.State) -> ReduceScatterRounds:
        n = rows.shape[1]
        message = state.message(rows, ModestLayout(cc.Field("values", torch.float32, n, "values")))
        message["values"].copy_(rows)
        received = yield Exchange(message)
        return Reduced(received["values"].sum(0), message)

    def contribution(self, sent: Any) -> Tensor:
        return sent["values"].clone()  # type: ignore[no-any-return]
