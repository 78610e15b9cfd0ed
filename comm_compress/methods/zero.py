"""Nothing of the gradient travels: the control of comparisons, at the other end from `identity`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from comm_compress.core import nonfinite
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.registry import register


@dataclass(frozen=True)
class ZeroConfig:
    """zero has no settings."""


@register("zero", ZeroConfig)
class Zero(Codec):
    """Every row decodes to zeros: the control that trains on nothing and whose traffic costs nothing.

    A comparison of methods that cannot tell this one's loss from the others' measures nothing, and its step
    time is the floor that no method gets below. One byte a row says whether the row was finite; a row that was
    not decodes to NaN.
    """

    traits = Traits(sparse=True, no_feedback="nothing is ever sent")

    def __init__(self, config: ZeroConfig) -> None:
        pass

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The layout of a row: a flag, or nothing for an empty row."""
        return Layout(Field("finite", torch.uint8, min(n, 1), "metadata"))

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Say of each row whether it is finite, and send nothing else."""
        n = rows.shape[1]
        out = state.message(rows, self.layout(n, rows.dtype))
        if n:
            out["finite"].copy_(torch.stack([nonfinite.all_finite(row) for row in rows]).unsqueeze(1))
        return out

    def decode(self, encoded: Encoded) -> Tensor:
        """Rows of zeros; NaNs for rows that were not finite."""
        values = torch.zeros(encoded.num_rows, encoded.n, device=encoded.buffer.device)
        return values.masked_fill_(encoded["finite"] == 0, torch.nan) if encoded.n else values

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Write zeros, or NaNs if any row was not finite."""
        return out.zero_().masked_fill_((encoded["finite"] == 0).any(), torch.nan)
