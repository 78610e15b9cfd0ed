"""8-bit floating point with a scale for every block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.compressor import Codec
from comm_compress.encoded import Encoded, Field, Layout
from comm_compress.methods.blockwise import as_scales, require_block
from comm_compress.registry import register
from comm_compress.state import State

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class Float8Config:
    """Settings of fp8: 4 exponent and 3 mantissa bits or 5 and 2; ``block_size`` elements share a scale."""

    format: Literal["e4m3", "e5m2"] = "e4m3"
    block_size: int = 256

    def __post_init__(self) -> None:
        require_block("block_size", self.block_size)


@register("fp8", Float8Config)
class Float8(Codec):
    """s = max|x| / M, code = fp8(x * (1 / s)), value = code * s (arXiv 2209.05433); M = 448 (e4m3) or 57344 (e5m2).

    Round to nearest, ties to even: biased. The error of an element relative to itself is at most 2^-4 (e4m3) or
    2^-3 (e5m2) down to 2^-14.8 or 2^-29.8 of its block's largest, and an absolute one of half the format's
    smallest number below; so the NMSE, about 0.0007 or 0.0028, hardly depends on the distribution or on the
    block. 8 + 32 / block_size bits an element. The sum over ranks is taken in float32.
    A block whose scale would be denormal decodes to 0, one that holds a NaN or an infinity to NaN.
    """

    for_parameters = True

    def __init__(self, config: Float8Config) -> None:
        self.block_size, self.dtype = config.block_size, FORMATS[config.format]

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """Scales first (they need the alignment), then one byte an element."""
        blocks = math.ceil(n / self.block_size)
        return Layout(Field("scales", torch.float32, blocks, "metadata"), Field("codes", torch.uint8, n, "values"))

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Row after row: one row of scaled float32 numbers in memory."""
        n = rows.shape[1]
        out = Encoded.empty(rows.shape[0], n, self.layout(n, rows.dtype), rows.device)
        largest = torch.finfo(self.dtype).max
        out["scales"].copy_(as_scales(kernels.block_norms(rows, self.block_size, math.inf), largest))
        for row, scales, codes in zip(rows, out["scales"], out["codes"], strict=True):
            inverse = self._spread(torch.where(scales > 0, 1 / scales, 0), n)  # 0 also where the scale is NaN
            scaled = torch.where(inverse > 0, row.float() * inverse, 0)
            codes.copy_(scaled.to(self.dtype).view(torch.uint8))
        return out

    def decode(self, encoded: Encoded) -> Tensor:
        """Float32 rows."""
        rows = torch.empty(encoded.num_rows, encoded.n, device=encoded.buffer.device)
        for row, scales, codes in zip(rows, encoded["scales"], encoded["codes"], strict=True):
            row.copy_(self._row(codes, scales))
        return rows

    def decode_sum(self, encoded: Encoded) -> Tensor:
        """The sum over rows, one decoded row at a time."""
        total = torch.zeros(encoded.n, device=encoded.buffer.device)
        for scales, codes in zip(encoded["scales"], encoded["codes"], strict=True):
            total += self._row(codes, scales)
        return total

    def _row(self, codes: Tensor, scales: Tensor) -> Tensor:
        return codes.view(self.dtype).float().mul_(self._spread(scales, codes.numel()))

    def _spread(self, scales: Tensor, n: int) -> Tensor:
        return scales.repeat_interleave(self.block_size)[:n]
