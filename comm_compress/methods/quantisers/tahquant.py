"""TAH-Quant: activations between the stages of a pipeline in 3 to 4 bits, tile by tile.

He et al., "TAH-Quant: Effective Activation Quantization in Pipeline Parallelism over Slow Network", 2025,
arXiv 2506.01352.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.methods.shared.tiles import count_tiles, hadamard, in_tiles, require_power_of_two
from comm_compress.registry import register, require

PIVOT, ROTATED, HIGH = 63, 64, 128  # a tile's flags: six bits of the pivot's place, two answers
LARGEST = 3e38  # a tile's range is cut to it, so that decoding cannot overflow
SMALLEST = 1e-30  # in the entropy: what a share is increased by before its logarithm is taken


@dataclass(frozen=True)
class TahQuantConfig:
    """Settings of tahquant; the defaults are those of the authors' programs.

    ``tile_size``: so many neighbouring elements share a scale and a least value; a power of two.
    ``high_bits``: bits of an element in tiles of high entropy.
    ``low_bits``: bits of an element in all other tiles.
    ``high_share``: the share of a message's tiles that get ``high_bits``.
    ``outlier_ratio``: a tile whose largest magnitude is at least so many times its second one is Hadamard-transformed;
    null: none is.
    ``scales``: the format in which scales and least values are sent, of 2 bytes or of 4.
    """

    tile_size: int = 64
    high_bits: int = 4
    low_bits: int = 3
    high_share: float = 0.8
    outlier_ratio: float | None = 2.0
    scales: Literal["bf16", "fp32"] = "bf16"

    def __post_init__(self) -> None:
        require_power_of_two("tile_size", self.tile_size, 8, 64)
        require(1 <= self.low_bits <= 8, "low_bits", self.low_bits, "between 1 and 8")
        require(
            self.low_bits <= self.high_bits <= 8, "high_bits", self.high_bits, f"from low_bits, {self.low_bits}, to 8"
        )
        require(0 <= self.high_share <= 1, "high_share", self.high_share, "between 0 and 1")
        positive = self.outlier_ratio is None or self.outlier_ratio >= 1
        require(positive, "outlier_ratio", self.outlier_ratio, "null, or at least 1 (then every tile is transformed)")


class _Grid(NamedTuple):
    """Of each tile ``[R, tiles]``: its smallest value and the distance of two values, in the format that travels."""

    least: Tensor
    step: Tensor


@register("tahquant", TahQuantConfig)
class TahQuant(Codec):
    """Send each tile as whole numbers of 3 or 4 bits above its least value, tiles with one outlier transformed first.

    For every tile x of ``tile_size`` elements:

    1. Bits. p_i = |x_i| / sum|x|; the tiles of the highest entropy -sum p log p get ``high_bits``: energy that is
       spread evenly has no single element that the transform could isolate.
    2. Transform. Where the largest magnitude is at least ``outlier_ratio`` times the second one, that element (the
       pivot) changes places with the tile's first, and the tile is multiplied by the normalised Hadamard matrix,
       whose first row has one sign: so the outlier shifts the whole tile and costs no resolution.
    3. Codes. code = round((x - least) / step) with step = (max - least) / (2^bits - 1), value = least + code step.

    Bits an element: high_share high_bits + (1 - high_share) low_bits + 40 / tile_size (scale and least value in
    bfloat16, a byte for the pivot's place and two answers): 4.43 by default. The error of an element is at most half a
    step (and 0.2 % of the tile's range where the step was rounded down), in the transformed tile where it was
    transformed. Biased (to nearest).

    Sources: the authors' programs, and the abstract of the paper's second version, which gives bits to tiles where
    the first gave them to whole tokens; a message here is what a rank sends at once, one micro-batch, and its tiles
    are ranked together. Different from theirs: scales are bfloat16 (theirs, float16, is too narrow for gradients),
    codes are taken with the scale that travels, the pivot's place travels for each tile, so that messages have one
    size, and a NaN or an infinity makes its tile NaN. A last, shorter tile is filled up with copies of its last
    element. The authors send gradients of activations in 6 bits without these steps: ``int8 num_bits=6 block_size=32``
    is the nearest to it.
    """

    traits = Traits(for_activations=True)

    def __init__(self, config: TahQuantConfig) -> None:
        self.config = config
        self.scale_dtype = torch.bfloat16 if config.scales == "bf16" else torch.float32

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The layout of a row: steps, least values, flags, then the codes of tiles of high and of low entropy."""
        tiles, size, config = count_tiles(n, self.config.tile_size), self.config.tile_size, self.config
        high = self._count_high(tiles)
        return Layout(
            Field("steps", self.scale_dtype, tiles, "metadata"),
            Field("least", self.scale_dtype, tiles, "metadata"),
            Field("flags", torch.uint8, tiles, "metadata"),
            Field("high", torch.uint8, high * size * config.high_bits // 8, "values"),
            Field("low", torch.uint8, (tiles - high) * size * config.low_bits // 8, "values"),
        )

    def _count_high(self, tiles: int) -> int:
        return round(self.config.high_share * tiles)

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Rank the tiles, transform those with an outlier, and round all."""
        n, size = rows.shape[1], self.config.tile_size
        out = state.message(rows, self.layout(n, rows.dtype))
        if not rows.numel():
            return out
        tiles = in_tiles(rows, size)
        if n % size:
            tiles[:, -1, n % size :] = tiles[:, -1, n % size - 1].unsqueeze(-1)
        high = self._of_high_entropy(tiles)
        flags, tiles = self._transformed(tiles)
        out["flags"].copy_(flags | torch.where(high, HIGH, 0))
        levels = self._levels(high)
        grid = self._grid(tiles, levels)
        out["steps"].copy_(grid.step)
        out["least"].copy_(grid.least)
        self._pack(_rounded(tiles, grid, levels), high, out)
        return out

    def _of_high_entropy(self, tiles: Tensor) -> Tensor:
        """Bool ``[R, tiles]``: the so many tiles of each row whose entropy is highest; of equal ones the first."""
        share = tiles.abs()
        share /= share.sum(-1, keepdim=True) + SMALLEST
        entropy = -(share * (share + SMALLEST).log()).sum(-1)
        first = entropy.argsort(dim=-1, descending=True, stable=True)[:, : self._count_high(tiles.shape[1])]
        return torch.zeros(entropy.shape, dtype=torch.bool, device=tiles.device).scatter_(1, first, True)

    def _transformed(self, tiles: Tensor) -> tuple[Tensor, Tensor]:
        """Return flags, uint8 ``[R, tiles]``, and the tiles, those with an outlier transformed."""
        if self.config.outlier_ratio is None:
            return torch.zeros(tiles.shape[:2], dtype=torch.uint8, device=tiles.device), tiles
        sizes, places = tiles.abs().topk(2, -1)
        outlier = sizes[..., 0] >= self.config.outlier_ratio * sizes[..., 1]
        pivot = places[..., 0]
        flags = torch.where(outlier, ROTATED | pivot, 0).to(torch.uint8)
        return flags, torch.where(outlier.unsqueeze(-1), hadamard(_swapped(tiles, pivot)), tiles)

    def _levels(self, high: Tensor) -> Tensor:
        """Float32 ``[R, tiles]``: the largest code of each tile."""
        return torch.where(high, 2.0**self.config.high_bits - 1, 2.0**self.config.low_bits - 1)

    def _grid(self, tiles: Tensor, levels: Tensor) -> _Grid:
        least, largest = tiles.aminmax(dim=-1)
        finite = torch.isfinite(least) & torch.isfinite(largest)
        least = self._below(torch.where(finite, least, 0))
        step = (largest.clamp(max=LARGEST) / levels - least / levels).clamp(0, None)
        step = torch.minimum(step, LARGEST / levels).to(self.scale_dtype).float()
        return _Grid(torch.where(finite, least, torch.nan), torch.where(finite, step, torch.nan))

    def _below(self, values: Tensor) -> Tensor:
        """The largest number of the format that travels that is not above each of ``values``, in float32."""
        if self.scale_dtype == torch.float32:
            return values
        bits = values.view(torch.int32)
        towards_zero = (bits & -65536).view(torch.float32)
        away = ((bits + 65535) & -65536).view(torch.float32)
        return torch.where(values < 0, away, towards_zero).clamp(min=-LARGEST)

    def _pack(self, codes: Tensor, high: Tensor, out: Encoded) -> None:
        """Write codes ``[R, tiles, tile_size]``: those of high tiles in one bit stream, the others in another."""
        sorted_codes = _take(codes, _order(high)).flatten(1)
        cut = self._count_high(high.shape[1]) * self.config.tile_size
        for name, bits, part in (
            ("high", self.config.high_bits, sorted_codes[:, :cut]),
            ("low", self.config.low_bits, sorted_codes[:, cut:]),
        ):
            if part.numel():
                kernels.bits(part).pack(part.contiguous(), bits, out[name])

    def decode(self, encoded: Encoded) -> Tensor:
        """The rows, float32 ``[R, n]``."""
        if not encoded.n:
            return torch.empty(encoded.num_rows, 0, device=encoded.buffer.device)
        flags = encoded["flags"]
        codes = self._unpacked(encoded, flags >= HIGH).float()
        tiles = codes * encoded["steps"].float().unsqueeze(-1) + encoded["least"].float().unsqueeze(-1)
        if self.config.outlier_ratio is not None:
            back = _swapped(hadamard(tiles), (flags & PIVOT).long())
            tiles = torch.where((flags & ROTATED > 0).unsqueeze(-1), back, tiles)
        return tiles.flatten(1)[:, : encoded.n]

    def _unpacked(self, encoded: Encoded, high: Tensor) -> Tensor:
        """Codes ``[R, tiles, tile_size]`` in the order of the tiles."""
        size, tiles = self.config.tile_size, high.shape[1]
        count = self._count_high(tiles)
        parts = []
        for name, bits, number in (
            ("high", self.config.high_bits, count),
            ("low", self.config.low_bits, tiles - count),
        ):
            packed = encoded[name]
            if number:
                parts.append(kernels.bits(packed).unpack(packed, bits, number * size, torch.uint8))
        codes = torch.cat(parts, 1).view(-1, tiles, size)
        return _take(codes, _order(high).argsort(-1))


def _rounded(tiles: Tensor, grid: _Grid, levels: Tensor) -> Tensor:
    """uint8 codes of ``tiles``: the nearest value of each tile's grid, 0 where it has none."""
    step = torch.where(grid.step > 0, grid.step, torch.inf).unsqueeze(-1)  # neither 0 nor NaN
    codes = ((tiles - grid.least.unsqueeze(-1)) / step).round_().nan_to_num_(0, posinf=256)
    return torch.minimum(codes, levels.unsqueeze(-1)).clamp_(min=0).to(torch.uint8)


def _swapped(tiles: Tensor, pivot: Tensor) -> Tensor:
    """``tiles`` with the first element and the one at ``pivot`` ``[R, tiles]`` exchanged: its own inverse."""
    places = torch.arange(tiles.shape[-1], device=tiles.device).expand(tiles.shape).clone()
    places[..., 0] = pivot
    places.scatter_(-1, pivot.unsqueeze(-1), 0)
    return tiles.gather(-1, places)


def _order(high: Tensor) -> Tensor:
    """Where in a row the high tiles are, in their order, and after them the others: int64 ``[R, tiles]``."""
    return (~high).to(torch.uint8).argsort(dim=-1, stable=True)


def _take(tiles: Tensor, order: Tensor) -> Tensor:
    return tiles.gather(1, order.unsqueeze(-1).expand(tiles.shape))
