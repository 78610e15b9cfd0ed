"""Uniform quantisation to 8-bit integers, with a scale for every block or one for all ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.compressor import Codec, Compressor
from comm_compress.encoded import Encoded, Field, Layout
from comm_compress.registry import register, require
from comm_compress.rounds import AllReduce, Reduced, ReduceScatterRounds, Sum
from comm_compress.state import State

LEVELS = 127  # codes -127..127: symmetric, -128 unused


@dataclass(frozen=True)
class Int8Config:
    """Settings of int8.

    ``scale``: "block" sends one float32 scale for every ``block_size`` elements with the codes;
    "global" agrees on one scale for the whole unit over all ranks.
    """

    scale: Literal["block", "global"] = "block"
    block_size: int = 256

    def __post_init__(self) -> None:
        require(8 <= self.block_size <= 1 << 20, "block_size", self.block_size, "between 8 and 1048576")


class BlockInt8(Codec):
    """Absmax quantisation by blocks: s = max|x| / 127, code = round(x / s), value = code * s.

    Each row carries its codes and scales, so ranks need not agree on anything and the sum over ranks
    is a float32 sum of decoded values, with 8 bits from each rank whatever the world size (the form of
    ZeRO++'s qgZ, arXiv 2306.10209, and SDP4Bit, arXiv 2410.15526). Round to nearest, ties to even:
    biased, |error| <= s / 2, NMSE about 5e-5 on Gaussian data. 8 + 32 / block_size bits an element.
    A block that holds a NaN or an infinity gets the scale NaN.
    """

    for_parameters = True

    def __init__(self, config: Int8Config) -> None:
        self.block_size = config.block_size

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """Scales first (they need the alignment), then one byte an element."""
        blocks = math.ceil(n / self.block_size)
        return Layout(Field("scales", torch.float32, blocks, "metadata"), Field("codes", torch.int8, n, "values"))

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Writes codes and scales straight into the wire buffer."""
        n = rows.shape[1]
        out = Encoded.empty(rows.shape[0], n, self.layout(n, rows.dtype), rows.device)
        kernels.absmax_quantize(rows, self.block_size, out["codes"], out["scales"])
        return out

    def decode(self, encoded: Encoded) -> Tensor:
        """Float32 rows."""
        return kernels.absmax_dequantize(encoded["codes"], encoded["scales"], self.block_size)

    def decode_sum(self, encoded: Encoded) -> Tensor:
        """The sum over rows without holding the decoded rows."""
        return kernels.absmax_dequantize_sum(encoded["codes"], encoded["scales"], self.block_size)


class SharedScaleInt8(Compressor):
    """One scale for a unit, agreed by all_reduce(MAX), and int8 codes that are summed as integers on the wire.

    With W ranks each may use 127 // W levels a side so that the sum fits in int8: 6 bits of resolution
    at 2 ranks, 4 at 8, 1 level a side from 64 on: the price of a native integer reduction (the
    original form of JoeyOL/FSDP-Communication-Optimization). Linear, biased (round to nearest),
    8 bits an element and one extra collective of 4 bytes.
    """

    linear = True
    max_ranks = LEVELS

    def __init__(self, config: Int8Config) -> None:
        pass

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Agree on the peak, then sum integers."""
        peak = yield AllReduce(_peak(rows), "max")
        message = self.encode(rows, peak)
        summed = yield Sum(message, torch.int8)
        return Reduced(self.contribution(summed)[0], message)

    def contribution(self, sent: Encoded) -> Tensor:
        """Codes times the agreed scale (also for the integer sum of all ranks' codes)."""
        return sent["codes"] * sent.agreed["scale"]

    def traffic(self, n: int, world: int, dtype: torch.dtype = torch.float32) -> int:
        """One byte an element, and the all-reduce of the scale."""
        return (world - 1) * (n + 2 * math.ceil(4 / world))

    def encode(self, rows: Tensor, peak: Tensor) -> Encoded:
        """Codes of ``rows`` ``[W, n]`` with W ranks' shares of the 127 levels; ``peak`` bounds |x| on all ranks."""
        n = rows.shape[1]
        scale = peak / (LEVELS // max(rows.shape[0], 1))
        usable = torch.isfinite(scale) & (scale >= torch.finfo(torch.float32).tiny)
        inverse = torch.where(usable, 1 / scale, 0)
        codes = torch.nan_to_num(rows.float() * inverse, 0, 0, 0).round_().to(torch.int8)
        agreed = {"scale": torch.where(torch.isfinite(peak), torch.where(usable, scale, 0), torch.nan)}
        return Encoded(codes.view(torch.uint8), Layout(Field("codes", torch.int8, n, "values")), n, agreed)


def _peak(rows: Tensor) -> Tensor:
    """max|x| as a float32 scalar, infinity when any element is NaN: MAX over ranks keeps an infinity, not a NaN."""
    if rows.numel() == 0:
        return torch.zeros((), device=rows.device)
    return torch.nan_to_num(torch.linalg.vector_norm(rows, torch.inf).float(), nan=torch.inf, posinf=torch.inf)


@register("int8", Int8Config)
def int8(config: Int8Config) -> Compressor:
    """8-bit integers with block scales (default) or one shared scale."""
    return SharedScaleInt8(config) if config.scale == "global" else BlockInt8(config)
