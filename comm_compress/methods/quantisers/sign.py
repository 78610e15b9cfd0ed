"""One bit an element: 1-bit SGD and signSGD."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Compressor
from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.kernels import BlockCode, Residual
from comm_compress.methods.quantisers.block_codec import BlockCodec, require_block
from comm_compress.methods.quantisers.fused_codec import FusedCodec
from comm_compress.registry import register


@dataclass(frozen=True)
class OneBitConfig:
    """Settings of onebit.

    ``group_size``: so many neighbouring elements share two reconstruction values, one for each sign.
    """

    group_size: int = 1024

    def __post_init__(self) -> None:
        require_block("group_size", self.group_size)


@register("onebit", OneBitConfig, error_feedback=True)
class OneBit(FusedCodec):
    """Each element becomes the mean of its group's elements of its sign: 1-bit SGD.

    The threshold is 0 (zero goes with the positive); the two means are the least-squares reconstruction. Biased:
    NMSE 1 - 2/pi = 0.363 on Gaussian data, 0.5 on Laplace; the paper diverges without error feedback, which is on by
    default. The paper's groups are the columns of a weight matrix (about 2,000 elements); a flat row is cut
    into groups of fixed size instead. 1 + 64 / group_size bits an element.

    A group of zeros decodes to zeros; one with a NaN to NaN; in one with an infinity, all on its side become infinite.

    Source: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training
    of speech DNNs", Interspeech 2014.
    """

    def __init__(self, config: OneBitConfig) -> None:
        self.group_size = config.group_size

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The layout of a row: the means of elements >= 0 and of those below, then the packed bits "is it >= 0"."""
        groups = math.ceil(n / self.group_size)
        return Layout(
            Field("above", torch.float32, groups, "metadata"),
            Field("below", torch.float32, groups, "metadata"),
            Field("bits", torch.uint8, math.ceil(n / 8), "values"),
        )

    def _encode(self, rows: Tensor, out: Encoded, residual: Residual | None, state: State) -> None:
        kernels.onebit(rows).encode(rows, self.group_size, out["above"], out["below"], out["bits"], residual)

    def _decode(self, encoded: Encoded, out: Tensor) -> None:
        kernels.onebit(out).decode(encoded["above"], encoded["below"], encoded["bits"], self.group_size, out)

    def _sum(self, encoded: Encoded, out: Tensor) -> None:
        kernels.onebit(out).decode_sum(encoded["above"], encoded["below"], encoded["bits"], self.group_size, out)


@dataclass(frozen=True)
class SignConfig:
    """Settings of signsgd.

    ``mode``: "scaled" sends each group's signs with its mean magnitude, and is used with error feedback; "majority"
    sends signs alone, and the gradient becomes the sign that most ranks sent.
    ``group_size``: so many neighbouring elements share a magnitude, or (majority) the mark that they are all zero.
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


class MajorityVote(FusedCodec):
    """Every rank sends the signs of its gradient; the result is the sign that most of them sent (arXiv 1802.04434).

    The total is W times the vote, -1, 0 (a tie) or 1, so that the mean that FSDP2 takes is the vote. It carries no
    magnitude: the learning rate is the step's size (with Adam it becomes signum with another momentum), clipping by
    norm scales every gradient alike, and the total is not the sum of what the ranks sent, so there is no error
    to feed back. 1 + 8 / group_size bits an element.

    There is no bit pattern for zero. Groups that are all zero are marked and abstain; a zero elsewhere votes by a
    private coin, because a fixed sign would be the same on all ranks and move a parameter without a gradient
    one way step after step. A group that is not finite on any rank becomes NaN.
    """

    traits = Traits(additive=False, no_feedback="a majority is not the sum of the ranks' signs")

    def __init__(self, config: SignConfig) -> None:
        self.group_size = config.group_size

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The layout of a row: a mark for every group, then the packed bits "is it positive"."""
        groups = math.ceil(n / self.group_size)
        return Layout(
            Field("marks", torch.uint8, groups, "metadata"), Field("bits", torch.uint8, math.ceil(n / 8), "values")
        )

    def _encode(self, rows: Tensor, out: Encoded, residual: Residual | None, state: State) -> None:
        assert residual is None, self.traits.no_feedback
        kernels.votes(rows).encode(rows, self.group_size, state.key("zeros"), out["marks"], out["bits"])

    def _decode(self, encoded: Encoded, out: Tensor) -> None:
        """Write votes: -1 or 1, 0 where a rank abstains, NaN where it was not finite."""
        kernels.votes(out).decode(encoded["marks"], encoded["bits"], self.group_size, out)

    def _sum(self, encoded: Encoded, out: Tensor) -> None:
        """Write the number of ranks times the sign of the sum of votes."""
        kernels.votes(out).majority(encoded["marks"], encoded["bits"], self.group_size, out)


@register("signsgd", SignConfig, error_feedback=True)
def signsgd(config: SignConfig) -> Compressor:
    """Send signs with the mean magnitude of their group (the default), or signs alone, of which the majority wins.

    Scaled signs are the default because they keep the gradient's size, so the optimiser's settings keep their meaning.

    Source: Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018, arXiv 1802.04434;
    Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019, arXiv
    1901.09847.
    """
    return ScaledSign(config) if config.mode == "scaled" else MajorityVote(config)
