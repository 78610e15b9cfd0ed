"""Casts: elements travel as bfloat16 or float16, and are summed in float32 after the wire."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.kernels import Residual
from comm_compress.registry import register


@dataclass(frozen=True)
class CastConfig:
    """bf16 and fp16 have no settings."""


class Cast(Codec):
    """Round every element to the nearest value of a 16-bit type (ties to even): 16 bits an element.

    The sum over ranks is taken in float32 after the wire, so it neither rounds nor overflows as a
    reduction on the wire would.
    """

    traits = Traits(for_parameters=True, for_activations=True)
    wire_dtype: torch.dtype

    def __init__(self, config: CastConfig) -> None:
        pass

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The layout of a row of ``n`` elements: two bytes each."""
        return Layout(Field("values", self.wire_dtype, n, "values"))

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Round all rows to the type that travels, in one pass."""
        out = state.message(rows, self.layout(rows.shape[1], rows.dtype))
        out["values"].copy_(rows)
        return out

    def encode_with_feedback(self, rows: Tensor, residual: Residual, state: State) -> Encoded:
        """Round the residual's target, and write what that loses in the same pass."""
        out = state.message(rows, self.layout(rows.shape[1], rows.dtype))
        kernels.casts(rows).cast_with_feedback(rows, residual, out["values"])
        return out

    def decode(self, encoded: Encoded) -> Tensor:
        """The rows as a view, in the 16-bit type: each of its values is a float32 value, too."""
        return encoded["values"]


@register("bf16", CastConfig)
class BFloat16(Cast):
    """bfloat16: float32's range, 8 bits of precision, relative error at most 2^-9 (denormals flush nowhere)."""

    wire_dtype = torch.bfloat16


@register("fp16", CastConfig)
class Float16(Cast):
    """IEEE half precision: 11 bits of precision, but a range of 6e-8 to 65504.

    A gradient beyond 65504 becomes an infinity, which the step's finiteness check sees; one below 3e-8
    becomes zero, which nothing sees: prefer bf16 or int8 where gradients are that small.
    """

    wire_dtype = torch.float16
