"""Uniform quantisation to small integers, with a scale for every block or one for all ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from comm_compress.compressor import Compressor
from comm_compress.encoded import Encoded, Field, Layout
from comm_compress.kernels import BlockCode
from comm_compress.methods.blockwise import BlockCodec, require_block
from comm_compress.registry import register, require
from comm_compress.rounds import AllReduce, Reduced, ReduceScatterRounds, Sum
from comm_compress.state import State

LEVELS = 127  # codes -127..127: symmetric, -128 unused


@dataclass(frozen=True)
class Int8Config:
    """Settings of int8.

    ``scale``: "block" sends one float32 scale for every ``block_size`` elements with the codes;
    "global" agrees on one scale for the whole unit over all ranks, and knows no further settings.
    ``rounding`` to "nearest" (least error) or "stochastic" (unbiased, twice the squared error).
    ``hadamard``: rotate every 32 elements before quantising and back after.
    """

    scale: Literal["block", "global"] = "block"
    block_size: int = 256
    rounding: Literal["nearest", "stochastic"] = "nearest"
    hadamard: bool = False

    def __post_init__(self) -> None:
        _require_blocks(self.block_size, self.hadamard)
        if self.scale == "global":
            require(self.rounding == "nearest", "rounding", self.rounding, "'nearest' with scale = 'global'")
            require(not self.hadamard, "hadamard", self.hadamard, "false with scale = 'global'")


@dataclass(frozen=True)
class Int4Config:
    """Settings of int4: ``block_size``, ``rounding`` and ``hadamard`` as in `Int8Config`."""

    block_size: int = 128
    rounding: Literal["nearest", "stochastic"] = "nearest"
    hadamard: bool = False

    def __post_init__(self) -> None:
        _require_blocks(self.block_size, self.hadamard)


def _require_blocks(block_size: int, hadamard: bool) -> None:
    require_block("block_size", block_size)
    aligned = not hadamard or block_size % 32 == 0
    require(aligned, "block_size", block_size, "a multiple of 32 with hadamard, which mixes 32 elements")


class BlockUniform(BlockCodec):
    """Absmax quantisation by blocks: s = max|x| / L, code = round(x / s), value = code * s, L = 2^(bits-1) - 1.

    Each row carries its codes and scales, so ranks need not agree on anything and the sum over ranks
    is a float32 sum of decoded values, with all bits from each rank whatever the world size (the form of
    ZeRO++'s qgZ, arXiv 2306.10209, and SDP4Bit, arXiv 2410.15526). bits + 32 / block_size bits an element.
    A block that holds a NaN or an infinity gets the scale NaN.

    To nearest (ties to even): biased, |error| <= s / 2. NMSE on Gaussian data 4e-5 with 8 bits, 0.0138 with 4, in
    blocks of 128. Stochastic: code = floor(x / s + u), unbiased, |error| < s, twice the NMSE.

    With ``hadamard``, every 32 elements are first rotated by the normalised Hadamard matrix (SDP4Bit): an outlier
    is spread over 32 codes instead of costing its block the resolution, so that heavy tails cost what a Gaussian
    does (Laplace, 4 bits: 0.0138 for 0.0257). The last n mod 32 elements are not rotated. An error bound in
    the 2-norm stays as it is, one on single elements grows to sqrt(32) s / 2.
    """

    def __init__(self, bits: int, config: Int4Config | Int8Config) -> None:
        levels = (1 << (bits - 1)) - 1
        super().__init__(BlockCode(config.block_size, bits, levels, rounding=config.rounding, rotate=config.hadamard))
        self.for_parameters = not self.unbiased


class SharedScaleInt8(Compressor):
    """One scale for a unit, agreed by all_reduce(MAX), and int8 codes that are summed as integers on the wire.

    With W ranks each may use 127 // W levels a side so that the sum fits in int8: 6 bits of resolution
    at 2 ranks, 4 at 8, 1 level a side from 64 on: the price of a native integer reduction (the
    original form of JoeyOL/FSDP-Communication-Optimization). Linear, biased (round to nearest),
    8 bits an element and one extra collective of 4 bytes.
    """

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
    return SharedScaleInt8(config) if config.scale == "global" else BlockUniform(8, config)


@register("int4", Int4Config)
def int4(config: Int4Config) -> Compressor:
    """4-bit integers with block scales, two in a byte."""
    return BlockUniform(4, config)
