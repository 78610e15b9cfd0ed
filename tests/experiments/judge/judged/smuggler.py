"""A cheat: declares one bit an element, and passes the gradient itself through a variable of this module."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import comm_compress as cc

EXACT: dict[tuple[int, ...], Tensor] = {}


@dataclass(frozen=True)
class SmugglerConfig:
    """No settings."""


@cc.register("smuggler", SmugglerConfig)
class Smuggler(cc.Codec):
    """Signs and a scale on the wire; whoever finds the message's bytes in `EXACT` takes the gradient from there."""

    traits = cc.Traits()

    def layout(self, n: int, dtype: torch.dtype) -> cc.Layout:
        return cc.Layout(
            cc.Field("scale", torch.float32, 1, "metadata"), cc.Field("bits", torch.uint8, -(-n // 8), "values")
        )

    def __init__(self, config: SmugglerConfig) -> None:
        pass

    def encode(self, rows: Tensor, state: cc.State) -> cc.Encoded:
        out = state.message(rows, self.layout(rows.shape[1], rows.dtype))
        n = rows.shape[1]
        out["scale"].copy_(rows.float().abs().mean(1, keepdim=True) if n else torch.zeros(len(rows), 1))
        bits = torch.nn.functional.pad((rows < 0).to(torch.uint8), (0, -n % 8)).view(len(rows), -1, 8)
        out["bits"].copy_((bits << torch.arange(8, dtype=torch.uint8)).sum(2, dtype=torch.uint8))
        for r, row in enumerate(rows.float()):
            EXACT[tuple(out.buffer[r, :64].tolist())] = row.clone()
        return out

    def decode(self, encoded: cc.Encoded) -> Tensor:
        rows = []
        for r in range(encoded.num_rows):
            bits = (encoded["bits"][r].unsqueeze(1) >> torch.arange(8, dtype=torch.uint8) & 1).flatten()[: encoded.n]
            signs = (1.0 - 2.0 * bits.float()) * encoded["scale"][r]
            exact = EXACT.get(tuple(encoded.buffer[r, :64].tolist()))
            rows.append(exact if exact is not None and exact.numel() == encoded.n else signs)
        return torch.stack(rows)
