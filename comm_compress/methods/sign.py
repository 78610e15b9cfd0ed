"""One bit an element: 1-bit SGD and signSGD."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.compressor import Codec, Compressor
from comm_compress.encoded import Encoded, Field, Layout
from comm_compress.kernels import BlockCode
from comm_compress.kernels.blocks_reference import block_lengths
from comm_compress.methods.blockwise import BlockCodec, require_block
from comm_compress.registry import register
from comm_compress.state import State


@dataclass(frozen=True)
class OneBitConfig:
    """Settings of onebit: ``group_size`` elements share two reconstruction values."""

    group_size: int = 1024

    def __post_init__(self) -> None:
        require_block("group_size", self.group_size)


@register("onebit", OneBitConfig, error_feedback=True)
class OneBit(Codec):
    """Each element becomes the mean of its group's elements of its sign (1-bit SGD, Seide et al., Interspeech 2014).

    The threshold is 0 (zero goes with the positive); the two means are the least-squares reconstruction. Biased:
    NMSE 1 - 2/pi = 0.363 on Gaussian data, 0.5 on Laplace; the paper diverges without error feedback, which is on by
    default. The paper's groups are the columns of a weight matrix (about 2,000 elements); a flat row is cut
    into groups of fixed size instead. 1 + 64 / group_size bits an element.

    A group of zeros decodes to zeros; one with a NaN to NaN; in one with an infinity, all on its side become infinite.
    """

    def __init__(self, config: OneBitConfig) -> None:
        self.group_size = config.group_size

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """Means of the elements >= 0 and of those below, then the packed bits "is it >= 0"."""
        groups = math.ceil(n / self.group_size)
        return Layout(
            Field("above", torch.float32, groups, "metadata"),
            Field("below", torch.float32, groups, "metadata"),
            Field("bits", torch.uint8, math.ceil(n / 8), "values"),
        )

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Sums and counts of each side."""
        n = rows.shape[1]
        out = state.message(rows, self.layout(n, rows.dtype))
        if n == 0:
            return out
        above = rows >= 0
        kernels.pack(above.view(torch.uint8), 1, out["bits"])
        count = kernels.block_norms(above, self.group_size, 1)
        rest = block_lengths(n, self.group_size, rows.device) - count
        out["above"].copy_(kernels.block_norms(rows.clamp(min=0), self.group_size, 1) / count.clamp(min=1))
        out["below"].copy_(kernels.block_norms(rows.clamp(max=0), self.group_size, 1) / -rest.clamp(min=1))
        return out

    def decode(self, encoded: Encoded) -> Tensor:
        """Float32 rows."""
        codes, scales = self._terms(encoded)
        rows = torch.empty(encoded.num_rows, encoded.n, device=encoded.buffer.device)
        for row, c, s in zip(rows, codes, scales, strict=True):
            row.copy_(kernels.absmax_dequantize_sum(c, s, self.group_size))
        return rows

    def decode_sum(self, encoded: Encoded) -> Tensor:
        """The sum over rows, from int8 codes: decoded rows are never held."""
        codes, scales = self._terms(encoded)
        return kernels.absmax_dequantize_sum(codes.flatten(0, 1), scales.flatten(0, 1), self.group_size)

    def _terms(self, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """Codes 0 and 1 ``[R, 2, n]`` and scales ``[R, 2, groups]``: a row is bit * above + (1 - bit) * below."""
        bits = kernels.unpack(encoded["bits"], 1, encoded.n, torch.uint8).view(torch.int8)
        return torch.stack((bits, 1 - bits), 1), torch.stack((encoded["above"], encoded["below"]), 1)


@dataclass(frozen=True)
class SignConfig:
    """Settings of signsgd.

    ``mode``: "scaled" sends each group's signs with its mean magnitude, and is used with error feedback; "majority"
    sends signs alone, and the gradient becomes the sign that most ranks sent. ``group_size``: elements that share a
    magnitude, or (majority) the mark that they are all zero.
    """

    mode: Literal["scaled", "majority"] = "scaled"
    group_size: int = 1024

    def __post_init__(self) -> None:
        require_block("group_size", self.group_size)


class ScaledSign(BlockCodec):
    """value = (||x||_1 / d) sgn(x) over groups of d elements: EF-signSGD (arXiv 1901.09847).

    Biased, ||x - C(x)||^2 = (1 - ||x||_1^2 / (d ||x||^2)) ||x||^2: NMSE 0.363 on Gaussian data, 0.5 on Laplace. With
    error feedback (on by default) it converges like SGD. sgn(0) = 1; a group of zeros has the mean 0 and decodes to
    zeros, one that is not finite to NaN. 1 + 32 / group_size bits an element.
    """

    def __init__(self, config: SignConfig) -> None:
        super().__init__(BlockCode(config.group_size, 1, 1, "mean", "sign"))


ALL_ZERO, FINITE, NOT_FINITE = 0, 1, 2  # what a group's mark says


class MajorityVote(Codec):
    """Every rank sends the signs of its gradient; the result is the sign that most of them sent (arXiv 1802.04434).

    The total is W times the vote, -1, 0 (a tie) or 1, so that the mean that FSDP2 takes is the vote. It carries no
    magnitude: the learning rate is the step's size (with Adam it becomes signum with another momentum), clipping by
    norm scales every gradient alike, and the total is not the sum of what the ranks sent, so there is no error
    to feed back. 1 + 8 / group_size bits an element.

    There is no bit pattern for zero. Groups that are all zero are marked and abstain; a zero elsewhere votes by a
    private coin, because a fixed sign would be the same on all ranks and move a parameter without a gradient
    one way step after step. A group that is not finite on any rank becomes NaN.
    """

    additive = False
    no_feedback = "a majority is not the sum of the ranks' signs"

    def __init__(self, config: SignConfig) -> None:
        self.group_size = config.group_size

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """A mark for every group, then the packed bits "is it positive"."""
        groups = math.ceil(n / self.group_size)
        return Layout(
            Field("marks", torch.uint8, groups, "metadata"), Field("bits", torch.uint8, math.ceil(n / 8), "values")
        )

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Marks and signs."""
        n = rows.shape[1]
        out = state.message(rows, self.layout(n, rows.dtype))
        peaks = kernels.block_norms(rows, self.group_size, math.inf)
        out["marks"].copy_(torch.where(torch.isfinite(peaks), torch.where(peaks > 0, FINITE, ALL_ZERO), NOT_FINITE))
        coins = (kernels.random_bits(state.key("zeros"), rows.numel(), rows.device) & 1).view(rows.shape)
        kernels.pack(torch.where(rows == 0, coins, rows > 0), 1, out["bits"])
        return out

    def decode(self, encoded: Encoded) -> Tensor:
        """The votes: -1, 1, 0 where a rank abstains, NaN where it was not finite."""
        return kernels.absmax_dequantize(*self._votes(encoded), self.group_size)

    def decode_sum(self, encoded: Encoded) -> Tensor:
        """The number of ranks times the sign of the sum of votes."""
        votes = kernels.absmax_dequantize_sum(*self._votes(encoded), self.group_size)
        return torch.where(votes.isnan(), torch.nan, votes.sign() * encoded.num_rows)

    def _votes(self, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """int8 signs ``[R, n]`` and float32 weights of groups: 0, 1 or NaN."""
        signs = kernels.unpack(encoded["bits"], 1, encoded.n, torch.uint8).mul_(2).sub_(1).view(torch.int8)
        marks = encoded["marks"]
        return signs, torch.where(marks <= FINITE, marks.float(), torch.nan)


@register("signsgd", SignConfig, error_feedback=True)
def signsgd(config: SignConfig) -> Compressor:
    """Scaled signs by default: they keep the gradient's size, so the optimiser's settings keep their meaning."""
    return ScaledSign(config) if config.mode == "scaled" else MajorityVote(config)
