"""Uniform quantisation to small integers, with a scale for every block or one for all ranks.

The form with block scales is that of ZeRO++ (Wang et al., 2023, arXiv 2306.10209) and of SDP4Bit (Jia et al., NeurIPS
2024, arXiv 2410.15526).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Compressor
from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.rounds import AllReduce, Reduced, ReduceScatterRounds, Sum
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.kernels import BlockCode
from comm_compress.methods.quantisers.block_codec import BlockCodec, require_block
from comm_compress.registry import register, require

LEVELS = 127  # codes -127..127: symmetric, -128 unused


@dataclass(frozen=True)
class BlockSettings:
    """What the block quantisers' settings have in common.

    ``block_size``: so many neighbouring elements share a scale.
    ``rounding``: to the "nearest" code (least error), or "stochastic" (unbiased, twice the squared error).
    ``hadamard``: rotate every 32 elements before they are rounded, and back when they have arrived, so that one large
    element costs its block no resolution.
    ``scales``: the format in which scales are sent, of 4 bytes or of 2.
    """

    block_size: int = 128
    rounding: Literal["nearest", "stochastic"] = "nearest"
    hadamard: bool = False
    scales: Literal["fp32", "bf16"] = "fp32"

    def __post_init__(self) -> None:
        require_block("block_size", self.block_size)
        aligned = not self.hadamard or self.block_size % 32 == 0
        require(aligned, "block_size", self.block_size, "a multiple of 32 with hadamard, which mixes 32 elements")

    def code(self, bits: int, levels: int, clip_sigmas: float = 0.0) -> BlockCode:
        """The block code of these settings with so many ``levels`` a side of zero."""
        short = self.scales == "bf16"
        return BlockCode(
            self.block_size, bits, levels, "max", self.rounding, clip_sigmas, self.hadamard, short_scales=short
        )


@dataclass(frozen=True)
class Int8Config(BlockSettings):
    """Settings of int8: those of `BlockSettings`, ``scale`` and ``num_bits``.

    ``scale``: "block", or "global": all ranks agree on one scale for the whole unit, and there are no further settings.
    ``num_bits``: width of a code, packed without a gap: 2^(num_bits-1) - 1 levels a side of zero. With 4 it is `int4`
    with larger blocks. With 2 or 3, single parameters would come back as zeros too often: gradients, and changes of
    parameters (`delta`), only.
    """

    scale: Literal["block", "global"] = "block"
    block_size: int = 256
    num_bits: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        require(2 <= self.num_bits <= 8, "num_bits", self.num_bits, "between 2 and 8")
        if self.scale == "global":
            whole = "8 with scale = 'global', whose codes are summed as bytes on the wire"
            require(self.num_bits == 8, "num_bits", self.num_bits, whole)
            require(self.rounding == "nearest", "rounding", self.rounding, "'nearest' with scale = 'global'")
            require(not self.hadamard, "hadamard", self.hadamard, "false with scale = 'global'")
            require(self.scales == "fp32", "scales", self.scales, "'fp32' with scale = 'global'")


@dataclass(frozen=True)
class UniformConfig(BlockSettings):
    """Settings of uniform, beside those of `BlockSettings`.

    ``levels``: so many values on each side of zero.
    ``clip_sigmas``: a block's scale spans so many of its standard deviations (about zero), and what is beyond is cut;
    0: it spans the largest magnitude.
    ``bits``: width of a code; null: the least that holds all levels. A wider one that divides 8 keeps codes inside
    bytes, which is what ``entropy`` wants.
    """

    levels: int = 3
    clip_sigmas: float = 0.0
    bits: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.levels <= LEVELS, "levels", self.levels, f"between 1 and {LEVELS}")
        require(0 <= self.clip_sigmas < math.inf, "clip_sigmas", self.clip_sigmas, "0 (no clipping) or positive")
        enough = self.bits is None or self.least_bits <= self.bits <= 8
        require(enough, "bits", self.bits, f"null, or from {self.least_bits}, which {self.levels} levels need, to 8")

    @property
    def least_bits(self) -> int:
        """The fewest bits that tell -levels..levels apart."""
        return (2 * self.levels).bit_length()


class BlockUniform(BlockCodec):
    """Absmax quantisation by blocks: s = max|x| / L, code = round(x / s), value = code * s, L = 2^(bits-1) - 1.

    Each row carries its codes and scales, so ranks need not agree on anything and the sum over ranks
    is a float32 sum of decoded values, with all bits from each rank whatever the world size (the form of
    ZeRO++'s qgZ, arXiv 2306.10209, and SDP4Bit, arXiv 2410.15526). bits + 32 / block_size bits an
    element; + 16 / block_size with scales in bfloat16, where a block's largest element may be cut by 0.2 %.
    A block that holds a NaN or an infinity gets the scale NaN.

    To nearest (ties to even): biased, |error| <= s / 2. NMSE on Gaussian data 4e-5 with 8 bits, 0.0138 with 4, in
    blocks of 128. Stochastic: code = floor(x / s + u), unbiased, |error| < s, twice the NMSE.

    ``clip_sigmas`` c makes s = c sigma / L where that is less than max|x| / L: a finer grid for most elements, and an
    error without bound for the few beyond it. On Gaussian data the best c is 1.22 for L = 1, 1.69 for 2, 1.95 for 3:
    NMSE 0.190, 0.082, 0.047 (Max, Quantizing for minimum distortion, 1960).

    With ``hadamard``, every 32 elements are first rotated by the normalised Hadamard matrix (SDP4Bit): an outlier
    is spread over 32 codes instead of costing its block the resolution, so that heavy tails cost what a Gaussian
    does (Laplace, 4 bits: 0.0138 for 0.0257). The last n mod 32 elements are not rotated. An error bound in
    the 2-norm stays as it is, one on single elements grows to sqrt(32) s / 2.
    """

    def __init__(self, code: BlockCode) -> None:
        super().__init__(code)
        self.traits = replace(self.traits, for_parameters=code.rounding == "nearest")


class SharedScaleInt8(Compressor):
    """One scale for a unit, agreed by all_reduce(MAX), and int8 codes that are summed as integers on the wire.

    With W ranks each may use 127 // W levels a side so that the sum fits in int8: 6 bits of resolution
    at 2 ranks, 4 at 8, 1 level a side from 64 on: the price of a native integer reduction (the
    original form of JoeyOL/FSDP-Communication-Optimization). Linear, biased (round to nearest),
    8 bits an element and one extra collective of 4 bytes.
    """

    traits = Traits(max_ranks=LEVELS)

    def __init__(self, config: Int8Config) -> None:
        pass

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Agree on the largest magnitude, then sum integers on the wire."""
        peak = yield AllReduce(_peak(rows), "max")
        message = self.encode(rows, peak, state)
        summed = yield Sum(message, torch.int8)
        total = state.result((1, message.n), rows.device)
        kernels.casts(total).scale_bytes(summed["codes"], summed.agreed["scale"], total)
        return Reduced(total[0], message)

    def contribution(self, sent: Encoded) -> Tensor:
        """This rank's part of the sum."""
        out = torch.empty(sent.num_rows, sent.n, device=sent.buffer.device)
        kernels.casts(out).scale_bytes(sent["codes"], sent.agreed["scale"], out)
        return out

    def subtract_contribution(self, target: Tensor, sent: Encoded) -> Tensor:
        """Subtract this rank's part from ``target``, in one pass."""
        kernels.casts(target).subtract_bytes(sent["codes"], sent.agreed["scale"], target)
        return target

    def traffic(self, n: int, world: int, dtype: torch.dtype = torch.float32) -> int:
        """Bytes that one rank sends to others: one an element, and the all-reduce of the scale."""
        return (world - 1) * (n + 2 * math.ceil(4 / world))

    def encode(self, rows: Tensor, peak: Tensor, state: State) -> Encoded:
        """Codes of ``rows`` ``[W, n]`` with W ranks' shares of the 127 levels; ``peak`` bounds |x| on all ranks."""
        n = rows.shape[1]
        scale = peak / (LEVELS // max(rows.shape[0], 1))
        usable = torch.isfinite(scale) & (scale >= torch.finfo(torch.float32).tiny)
        inverse = torch.where(usable, 1 / scale, 0)
        message = state.message(rows, Layout(Field("codes", torch.int8, n, "values")))
        kernels.casts(rows).round_to_bytes(rows, inverse, message["codes"])
        agreed = {"scale": torch.where(torch.isfinite(peak), torch.where(usable, scale, 0), torch.nan)}
        return replace(message, agreed=agreed)


def _peak(rows: Tensor) -> Tensor:
    """max|x| as a float32 scalar, infinity when any element is NaN: MAX over ranks keeps an infinity, not a NaN."""
    if rows.numel() == 0:
        return torch.zeros((), device=rows.device)
    least, most = torch.aminmax(rows)  # forty times as fast as the infinity norm on a CPU
    return torch.nan_to_num(torch.maximum(-least, most).float(), nan=torch.inf, posinf=torch.inf)


@register("int8", Int8Config)
def int8(config: Int8Config) -> Compressor:
    """Send 8-bit integers with block scales (default) or one shared scale; fewer bits with ``num_bits``."""
    if config.scale == "global":
        return SharedScaleInt8(config)
    made = BlockUniform(config.code(config.num_bits, (1 << (config.num_bits - 1)) - 1))
    return made if config.num_bits >= 4 else _for_changes(made)


def _for_changes(method: BlockUniform) -> BlockUniform:
    """Let a method that loses most of a parameter carry changes of parameters instead, whose error is fed back."""
    method.traits = replace(method.traits, for_changes=method.traits.for_parameters, for_parameters=False)
    return method


@register("int4", BlockSettings)
def int4(config: BlockSettings) -> Compressor:
    """Send 4-bit integers with block scales, two in a byte."""
    return BlockUniform(config.code(4, 7))


@register("uniform", UniformConfig)
def uniform(config: UniformConfig) -> Compressor:
    """Send integers of few levels with block scales that may be cut: for less than 4 bits."""
    made = BlockUniform(config.code(config.bits or config.least_bits, config.levels, config.clip_sigmas))
    return made if config.levels > 1 else _for_changes(made)
