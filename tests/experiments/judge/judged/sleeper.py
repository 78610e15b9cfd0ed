"""A method that never comes back from its first encoding."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

import comm_compress as cc


@dataclass(frozen=True)
class SleeperConfig:
    """No settings."""


@cc.register("sleeper", SleeperConfig)
class Sleeper(cc.Codec):
    """Waits for ever."""

    traits = cc.Traits()

    def __init__(self, config: SleeperConfig) -> None:
        pass

    def layout(self, n: int, dtype: torch.dtype) -> cc.Layout:
        return cc.Layout(cc.Field("values", torch.float32, n, "values"))

    def encode(self, rows: Tensor, state: cc.State) -> cc.Encoded:
        while True:
            time.sleep(1)

    def decode(self, encoded: cc.Encoded) -> Tensor:
        return encoded["values"]
