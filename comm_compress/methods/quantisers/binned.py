"""Few bits a value with a table of what each code stands for: how SparseLoCo sends the values that top-k keeps.

Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", 2025, arXiv 2508.15706.
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
from comm_compress.methods.quantisers.block_codec import require_block
from comm_compress.registry import register, require

FINE = 1 << 20  # a block's largest magnitude, in the whole numbers that sums are made of


@dataclass(frozen=True)
class BinnedConfig:
    """Settings of binned.

    ``num_bits``: width of a code, for 2^num_bits bins of equal width.
    ``block_size``: so many neighbouring elements share a table.
    ``range_sigmas``: the bins span so many standard deviations; what is beyond belongs to the outermost ones.
    ``centre``: what lies at the mean, an "edge" between two bins, so that both signs have as many, or the middle of a
    "bin". SparseLoCo's public code takes 6 standard deviations and a bin.
    """

    num_bits: int = 2
    block_size: int = 4096
    range_sigmas: float = 4.0
    centre: Literal["edge", "bin"] = "edge"

    def __post_init__(self) -> None:
        require(1 <= self.num_bits <= 8, "num_bits", self.num_bits, "between 1 and 8")
        require_block("block_size", self.block_size)
        require(0 < self.range_sigmas < math.inf, "range_sigmas", self.range_sigmas, "positive")


@register("binned", BinnedConfig, error_feedback=True)
class Binned(Codec):
    """Send the number of a bin for every element, and for every block the mean of what fell into each bin.

        width = range_sigmas sigma / 2^num_bits,  code = floor((x - mean) / width) + 2^(num_bits - 1), cut to the bins
        value = mean of the block's elements with that code, float32

    Means and standard deviations are of the block. Every table entry is the best value for its bin, so the squared
    error is at most that of equally spaced values. Biased; error feedback is on by default. As ``values`` of top-k
    with chunks it is SparseLoCo's message. Those values have a gap around zero, which an edge lies in: NMSE with 2 bits
    on the largest 64 of 4096 Gaussian elements 0.0050, for 0.0125 with SparseLoCo's own bins; on Laplace data 0.015 for
    0.035. On all elements of Gaussian data 0.118.

    Sums are of whole numbers (a 2^20th of the block's largest magnitude), whose order does not matter. A block that is
    not finite arrives as NaN. Encoding takes several passes over memory, where other quantisers take one: it is made
    for the few values of a sparsifier.

    Bits an element: num_bits + 32 * 2^num_bits / block_size.
    """

    traits = Traits()

    def __init__(self, config: BinnedConfig) -> None:
        self.config, self.bins = config, 1 << config.num_bits

    def _blocks(self, n: int) -> int:
        return math.ceil(n / self.config.block_size)

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The layout of a row: the blocks' tables, then the packed codes."""
        return Layout(
            Field("tables", torch.float32, self._blocks(n) * self.bins, "metadata"),
            Field("codes", torch.uint8, math.ceil(n * self.config.num_bits / 8), "values"),
        )

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Encode rows of any float dtype."""
        num_rows, n = rows.shape
        out = state.message(rows, self.layout(n, rows.dtype))
        if n == 0 or num_rows == 0:
            return out
        blocks = self._in_blocks(rows.float())
        inside = self._in_blocks(torch.ones_like(rows[:1], dtype=torch.float32)).bool()
        peak = blocks.abs().amax(-1, keepdim=True)
        finite = torch.isfinite(peak)
        unit = torch.where(finite & (peak >= torch.finfo(torch.float32).tiny), peak, 1)
        fine = torch.where(finite, blocks / unit * FINE, 0).round().to(torch.int64)
        codes = self._codes(fine, inside)
        tables = self._means(fine, codes, inside) * unit
        out["tables"].copy_(torch.where(finite, tables, torch.nan).view(num_rows, -1))
        packable = codes.view(num_rows, -1)[:, :n].to(torch.uint8).contiguous()
        kernels.bits(rows).pack(packable, self.config.num_bits, out["codes"])
        return out

    def _in_blocks(self, rows: Tensor) -> Tensor:
        """Return ``[R, blocks, block_size]``, with zeros behind the last element."""
        size = min(self.config.block_size, rows.shape[1])
        padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % size))
        return padded.view(rows.shape[0], -1, size)

    def _codes(self, fine: Tensor, inside: Tensor) -> Tensor:
        """Return each element's bin, int64. What is below is float64 of whole numbers: the same on every device."""
        count = inside.sum(-1, keepdim=True).double()
        mean = fine.sum(-1, keepdim=True).double() / count
        away = torch.where(inside, fine.double() - mean, 0)
        whole = away.round().to(torch.int64)  # at most 2^21, in blocks of at most 2^20: squares add up to 2^62
        sigma = ((whole * whole).sum(-1, keepdim=True).double() / count).sqrt()
        width = self.config.range_sigmas * sigma / self.bins
        steps = torch.where(width > 0, away / width, 0)
        steps = steps.floor() if self.config.centre == "edge" else steps.round()
        return (steps + self.bins // 2).clamp(0, self.bins - 1).to(torch.int64)

    def _means(self, fine: Tensor, codes: Tensor, inside: Tensor) -> Tensor:
        """Return each bin's mean in units of the block's largest magnitude, float32 ``[R, blocks, bins]``."""
        empty = torch.zeros(*fine.shape[:2], self.bins, dtype=torch.int64, device=fine.device)
        sums = empty.scatter_add(-1, codes, fine)
        counts = empty.scatter_add(-1, codes, inside.expand(fine.shape).to(torch.int64))
        return (sums.double() / counts.clamp(min=1) / FINE).float()

    def decode(self, encoded: Encoded) -> Tensor:
        """The rows, float32 ``[R, n]``."""
        num_rows, n = encoded.num_rows, encoded.n
        if n == 0 or num_rows == 0:
            return torch.zeros(num_rows, n, device=encoded.buffer.device)
        codes = kernels.bits(encoded.buffer).unpack(encoded["codes"], self.config.num_bits, n, torch.uint8)
        tables = encoded["tables"].reshape(num_rows, -1)
        block = torch.arange(n, device=codes.device) // self.config.block_size * self.bins
        return tables.gather(1, codes.to(torch.int64) + block)
