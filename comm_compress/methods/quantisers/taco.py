"""TACO: activations of tensor parallelism in 8-bit floats, behind an adaptive scale and a Hadamard transform.

Liu et al., "TACO: Efficient Communication Compression of Intermediate Tensors for Scalable Tensor-Parallel LLM
Training", HPDC 2026, arXiv 2604.24088; its authors' kernels are part of their library COCCL.
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
from comm_compress.kernels import BlockCode
from comm_compress.methods.quantisers.float8 import LARGEST
from comm_compress.methods.shared.tiles import count_tiles, hadamard, in_tiles, require_power_of_two
from comm_compress.registry import register

DAMPING = 1e-6  # lambda: added to a group's mean square
LEAST, MOST = 1e-3, 1e3  # limits of the adaptive scale


@dataclass(frozen=True)
class TacoConfig:
    """Settings of taco; the defaults are those of the authors' kernels.

    ``format``: "e4m3" has 4 bits of exponent and 3 of mantissa, "e5m2" 5 and 2.
    ``group_size``: so many neighbouring elements share both scales and are transformed together; a power of two.
    """

    format: Literal["e4m3", "e5m2"] = "e4m3"
    group_size: int = 128

    def __post_init__(self) -> None:
        require_power_of_two("group_size", self.group_size, 32, 1024)


@register("taco", TacoConfig)
class Taco(Codec):
    """Send 8-bit floats of groups that were scaled by their root mean square and Hadamard-transformed.

        a = M / sqrt(mean(x^2) + 1e-6), from 0.001 to 1000;   y = H(a x) / sqrt(group_size)
        s = max|y| / M;   code = fp8(y / s);   value = H(code s) / (a sqrt(group_size))
        M = 448 (e4m3) or 57344 (e5m2)

    Both scales, a (the adaptive one) and s, travel in float32 with every group: 8 + 64 / group_size bits an element.
    The transform spreads an outlier over its whole group, so the NMSE is that of fp8 on Gaussian data, about 0.0007
    (e4m3) or 0.0028 (e5m2), whatever the distribution. Since s is taken after a, a cancels in exact arithmetic: it
    keeps the transform's numbers in one range, and decides no code except through rounding. Biased (to nearest).

    A last, shorter group is filled up with zeros, which travel. A group that holds a NaN or an infinity decodes to NaN;
    the authors' kernels make a zero of it.

    The definition was read in the authors' kernels and agrees with what others report of sections 4.2 and 4.3 of
    the paper; the paper's choice of shapes ("data-driven reshaping") could not be checked: groups here are
    neighbours in memory, so they lie within one token's features wherever group_size divides these.
    """

    traits = Traits(for_parameters=True, for_activations=True)

    def __init__(self, config: TacoConfig) -> None:
        self.group_size = config.group_size
        self.code = BlockCode(config.group_size, 8, LARGEST[config.format], rounding=config.format)

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The layout of a row: the scales after the transform, those before it, and the codes of whole groups."""
        groups = count_tiles(n, self.group_size)
        return Layout(
            Field("scales", torch.float32, groups, "metadata"),
            Field("adaptive", torch.float32, groups, "metadata"),
            Field("codes", torch.uint8, groups * self.group_size, "values"),
        )

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Scale, transform, and round every group."""
        n = rows.shape[1]
        out = state.message(rows, self.layout(n, rows.dtype))
        if rows.numel():
            groups = in_tiles(rows, self.group_size)
            adaptive = self._adaptive(groups, n)
            out["adaptive"].copy_(adaptive)
            turned = hadamard(groups * adaptive.unsqueeze(-1)).flatten(1)
            kernels.blocks(turned).encode(turned, self.code, None, out["codes"], out["scales"])
        return out

    def _adaptive(self, groups: Tensor, n: int) -> Tensor:
        """Float32 ``[R, groups]``: what each group is multiplied by before the transform."""
        lengths = torch.full((groups.shape[1],), float(self.group_size), device=groups.device)
        lengths[-1] = n - self.group_size * (groups.shape[1] - 1)
        mean_squares = groups.square().sum(-1) / lengths
        return (self.code.levels * torch.rsqrt(mean_squares + DAMPING)).clamp(LEAST, MOST)

    def decode(self, encoded: Encoded) -> Tensor:
        """The rows, float32 ``[R, n]``."""
        num_rows, width = encoded.num_rows, math.ceil(encoded.n / self.group_size) * self.group_size
        turned = torch.empty(num_rows, width, device=encoded.buffer.device)
        if not encoded.n:
            return turned
        kernels.blocks(turned).decode(encoded["codes"], encoded["scales"], self.code, turned)
        groups = hadamard(turned.view(num_rows, -1, self.group_size))
        groups /= encoded["adaptive"].unsqueeze(-1)
        return groups.flatten(1)[:, : encoded.n]
