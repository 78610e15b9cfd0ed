"""Random rounding to a few levels: QSGD and TernGrad."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from comm_compress.kernels import BlockCode
from comm_compress.methods.quantisers.block_codec import BlockCodec, require_block
from comm_compress.registry import register, require


@dataclass(frozen=True)
class QsgdConfig:
    """Settings of qsgd.

    ``bits``: width of a code, sign and level together: 2^(bits-1) - 1 levels a side of zero, or ``levels`` of them.
    ``levels``: levels a side of zero, which then decide the width of a code; null: as many as ``bits`` hold.
    ``bucket_size``: so many neighbouring elements share a norm.
    ``norm``: "max" (the paper's experiments) or "l2" (its theory: larger error, more zeros).
    """

    bits: int = 4
    levels: int | None = None
    bucket_size: int = 512
    norm: Literal["max", "l2"] = "max"

    def __post_init__(self) -> None:
        require(1 <= self.bits <= 8, "bits", self.bits, "between 1 and 8")
        most = (1 << (self.bits - 1)) - 1
        if self.levels is not None:
            require(self.bits > 1, "levels", self.levels, "left out with bits = 1, which has two values and no zero")
            wanted = f"between 1 and {most}, the most that {self.bits} bits hold beside the sign and zero"
            require(1 <= self.levels <= most, "levels", self.levels, wanted)
        require_block("bucket_size", self.bucket_size)


@register("qsgd", QsgdConfig)
class QSGD(BlockCodec):
    """Round |x| / norm to one of its two neighbours among 0, 1/s, ..., 1 at random.

        value = norm * sgn(x) * l / s,  l = floor(s |x| / norm) or one more, so that the mean is |x|

    norm is that of a bucket of d elements, s = 2^(bits-1) - 1, so that ceil(log2(2s + 1)) = bits: 1, 3, 7, 15, 31,
    63, 127 levels a side for 2 to 8 bits. Unbiased. With f the fractional part of s |x| / norm, the variance of an
    element is (norm / s)^2 f (1 - f); over a bucket it is at most min(d / s^2, sqrt(d) / s) ||x||^2 with the l2 norm,
    and d / (4 s^2) max|x|^2 with the max norm, whose step is the smaller one for any data: the default.
    NMSE on Gaussian buckets of 512, s = 7: 0.036 max, 1.58 l2. bits + 32 / bucket_size bits an element.

    bits = 1 has no room for a zero: value = norm or -norm with probability (1 + x / norm) / 2 and the rest (sign
    dithering). Unbiased, variance norm^2 - x^2 an element: about 9.8 ||x||^2 for Gaussian buckets of 512.

    A bucket of zeros has norm 0 and decodes to zeros, one with a NaN or an infinity to NaN. Left out of the
    paper: Elias coding, so the size depends on n alone.

    Source: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017,
    arXiv 1610.02132.
    """

    def __init__(self, config: QsgdConfig) -> None:
        levels = config.levels or (1 << (config.bits - 1)) - 1
        bits = math.ceil(math.log2(2 * levels + 1)) or 1
        super().__init__(BlockCode(config.bucket_size, bits, levels or 1, config.norm, "stochastic"))


@dataclass(frozen=True)
class TernGradConfig:
    """Settings of terngrad.

    ``clip_sigmas``: elements are cut to so many standard deviations of their bucket; 0: never.
    ``bucket_size``: so many neighbouring elements share a scaler; null: the whole row.
    ``packing``: four codes in a byte ("2bit") or five ("base3").
    """

    clip_sigmas: float = 2.5
    bucket_size: int | None = 512
    packing: Literal["2bit", "base3"] = "2bit"

    def __post_init__(self) -> None:
        require(0 <= self.clip_sigmas < math.inf, "clip_sigmas", self.clip_sigmas, "0 (no clipping) or positive")
        require_block("bucket_size", self.bucket_size)


@register("terngrad", TernGradConfig)
class TernGrad(BlockCodec):
    """Every element becomes -s, 0 or s at random, s the largest magnitude of its bucket.

        value = s sgn(x) b,  b = 1 with probability |x| / s, else 0

    s = max|x| of the elements after they are cut to [-c sigma, c sigma], c = ``clip_sigmas``, sigma the standard
    deviation about zero (about the mean, a bucket of equal numbers would be cut to nothing). Unbiased without
    clipping; with it large elements lose what is beyond c sigma. Variance |x| (s - |x|) an element: NMSE on
    Gaussian data 1.01 with c = 2.5.

    The paper takes a scaler for every layer. A row holds parts of several layers, which a scaler for all of them
    would mix, hence the buckets; the paper's sharing of one scaler over all workers is not done: rows are decoded
    before they are summed. 2 or 1.6 bits an element, and 32 / bucket_size for the scalers.

    Source: Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning",
    NeurIPS 2017, arXiv 1705.07878.
    """

    def __init__(self, config: TernGradConfig) -> None:
        bits = 2 if config.packing == "2bit" else None
        super().__init__(BlockCode(config.bucket_size, bits, 1, "max", "stochastic", config.clip_sigmas))
