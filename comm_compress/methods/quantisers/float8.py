"""8-bit floating point with a scale for every block.

Micikevicius et al., "FP8 formats for deep learning", 2022, arXiv 2209.05433.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from comm_compress.core.traits import Traits
from comm_compress.kernels import BlockCode
from comm_compress.methods.quantisers.block_codec import BlockCodec, require_block
from comm_compress.registry import register

LARGEST = {"e4m3": 448, "e5m2": 57344}


@dataclass(frozen=True)
class Float8Config:
    """Settings of fp8.

    ``format``: "e4m3" has 4 bits of exponent and 3 of mantissa, "e5m2" 5 and 2.
    ``block_size``: so many neighbouring elements share a scale.
    """

    format: Literal["e4m3", "e5m2"] = "e4m3"
    block_size: int = 256

    def __post_init__(self) -> None:
        require_block("block_size", self.block_size)


@register("fp8", Float8Config)
class Float8(BlockCodec):
    """Send 8-bit floats with a scale for every block.

        s = max|x| / M,  code = fp8(x * (1 / s)),  value = code * s;  M = 448 (e4m3) or 57344 (e5m2)

    Round to nearest, ties to even: biased. The error of an element relative to itself is at most 2^-4 (e4m3) or
    2^-3 (e5m2) down to 2^-14.8 or 2^-29.8 of its block's largest, and an absolute one of half the format's
    smallest number below; so the NMSE, about 0.0007 or 0.0028, hardly depends on the distribution or on the
    block. 8 + 32 / block_size bits an element. The sum over ranks is taken in float32.
    A block whose scale would be denormal decodes to 0, one that holds a NaN or an infinity to NaN.
    """

    traits = Traits(for_parameters=True, for_activations=True)

    def __init__(self, config: Float8Config) -> None:
        super().__init__(BlockCode(config.block_size, 8, LARGEST[config.format], rounding=config.format))
