"""No compression: what the transport alone costs."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.registry import register


@dataclass(frozen=True)
class IdentityConfig:
    """identity has no settings."""


@register("identity", IdentityConfig)
class Identity(Codec):
    """Sends the input's own bytes; the sum is taken in float32 at the receiver.

    Trains like stock FSDP2: bit for bit at two ranks, to float32 rounding above (another order of sums).
    """

    traits = Traits(unbiased=True, lossless=True, for_parameters=True, for_activations=True)
    plain = True

    def __init__(self, config: IdentityConfig) -> None:
        pass

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The layout of a row: its elements as they are."""
        return _layout(n, dtype)

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """The rows' own bytes, as a view."""
        n = rows.shape[1]
        return Encoded(rows.contiguous().view(torch.uint8), self.layout(n, rows.dtype), n)

    def decode(self, encoded: Encoded) -> Tensor:
        """The rows as a view, in the dtype that they were sent in."""
        return encoded["values"]


@functools.lru_cache(maxsize=1024)  # units times directions
def _layout(n: int, dtype: torch.dtype) -> Layout:
    return Layout(Field("values", dtype, n, "values"))


UNCOMPRESSED = Identity(IdentityConfig())
"""For the parts and the steps that a method leaves as they are."""
