"""Natural compression: every element is rounded to a power of two.

Horvath et al., "Natural Compression for Distributed Deep Learning", 2019, arXiv 1905.10988.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.kernels import Residual
from comm_compress.methods.quantisers.fused_codec import FusedCodec
from comm_compress.registry import register


@dataclass(frozen=True)
class NaturalConfig:
    """Settings of nc.

    ``bits``: what an element takes, 9 (all of float32's exponents) or 8 (the 127 below the largest of 2048 elements).
    ``rounding``: how magnitudes become a power of two, "stochastic" (unbiased) or "nearest" (half the error).
    """

    bits: Literal[8, 9] = 9
    rounding: Literal["stochastic", "nearest"] = "stochastic"


class NaturalCompression(FusedCodec):
    """Keep sign and exponent; round the exponent up with a probability equal to the mantissa.

        C(x) = sgn(x) 2^floor(log2|x|) with probability 2 - |x| / 2^floor(log2|x|), else twice that; C(0) = 0

    Unbiased, E|C(x) - x|^2 <= x^2 / 8 for every element whatever its size; NMSE on Gaussian data 0.082. To nearest
    (0.038) it is biased, |C(x) - x| <= |x| / 3. No scales, no blocks: one pass over float32's bits.

    Denormals become 0 or 2^-126 by the same rule, unbiased. Between 2^127 and float32's largest number there is
    only 2^127. An infinity or a NaN decodes to an infinity. 9 bits an element: a byte of exponent, a bit of sign.
    """

    def __init__(self, config: NaturalConfig) -> None:
        self.traits = Traits(unbiased=config.rounding == "stochastic", for_activations=True)

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The layout of a row: exponents, then packed signs."""
        return Layout(Field("exponents", torch.uint8, n, "values"), Field("signs", torch.uint8, (n + 7) // 8, "values"))

    def _encode(self, rows: Tensor, out: Encoded, residual: Residual | None, state: State) -> None:
        kernels.powers(rows).encode(rows, self._key(state), out["exponents"], out["signs"], residual)

    def _decode(self, encoded: Encoded, out: Tensor) -> None:
        kernels.powers(out).decode(encoded["exponents"], encoded["signs"], out)

    def _sum(self, encoded: Encoded, out: Tensor) -> None:
        kernels.powers(out).decode_sum(encoded["exponents"], encoded["signs"], out)

    def _key(self, state: State) -> tuple[int, int] | None:
        return state.key("rounding") if self.traits.unbiased else None


class WindowedNaturalCompression(NaturalCompression):
    """Natural compression in 8 bits: sign, and one of 127 powers of two or zero.

    The window hangs from the largest of every 2048 elements, so nothing is ever cut off above. Below it, which is more
    than 2^125 times smaller than that element, x becomes 0 or the smallest power p, p with probability |x| / p: still
    unbiased. The block's lowest exponent travels with it (one byte); 0 there says that the block was not finite, and
    it decodes to NaN.
    """

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The layout of a row: where each window lies, then one byte an element."""
        windows = Field("lowest", torch.uint8, math.ceil(n / kernels.POWER_BLOCK), "metadata")
        return Layout(windows, Field("codes", torch.uint8, n, "values"))

    def _encode(self, rows: Tensor, out: Encoded, residual: Residual | None, state: State) -> None:
        kernels.powers(rows).encode_window(rows, self._key(state), out["lowest"], out["codes"], residual)

    def _decode(self, encoded: Encoded, out: Tensor) -> None:
        kernels.powers(out).decode_window(encoded["lowest"], encoded["codes"], out)

    def _sum(self, encoded: Encoded, out: Tensor) -> None:
        kernels.powers(out).decode_window_sum(encoded["lowest"], encoded["codes"], out)


@register("nc", NaturalConfig)
def nc(config: NaturalConfig) -> Codec:
    """Round to powers of two, which take 9 bits (the default) or 8."""
    return NaturalCompression(config) if config.bits == 9 else WindowedNaturalCompression(config)
