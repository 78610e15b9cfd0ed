"""Small integers times a scale for every block of a row: what most quantisers send."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.compressor import Codec
from comm_compress.encoded import Encoded, Field, Layout
from comm_compress.registry import require
from comm_compress.state import State

TINY, HUGE = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
TRITS_PER_BYTE = 5


class BlockCodec(Codec):
    """value = code * scale of its block. A method says how scales and codes are found (`quantize`).

    ``block_size``: elements that share a scale; None: the whole row. ``bits``: width of a packed code, which
    is a two's complement number; with 1 bit -1 or 1; with None one of -1, 0, 1, five of them in a byte.
    A scale that is NaN makes its whole block NaN.
    """

    def __init__(self, block_size: int | None, bits: int | None) -> None:
        self._block_size, self.bits = block_size, bits

    @abstractmethod
    def quantize(self, rows: Tensor, codes: Tensor, scales: Tensor, state: State) -> None:
        """Write int8 ``codes`` ``[R, n]`` and float32 ``scales`` ``[R, blocks]`` of ``rows`` ``[R, n]``, n > 0."""

    def block_size(self, n: int) -> int:
        """Elements in a block of a row of ``n``."""
        return self._block_size or max(n, 1)

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """Scales first (they need the alignment), then the packed codes."""
        blocks = math.ceil(n / self.block_size(n))
        size = math.ceil(n / TRITS_PER_BYTE if self.bits is None else n * self.bits / 8)
        return Layout(Field("scales", torch.float32, blocks, "metadata"), Field("codes", torch.uint8, size, "values"))

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Quantise, pack."""
        num_rows, n = rows.shape
        out = Encoded.empty(num_rows, n, self.layout(n, rows.dtype), rows.device)
        if n == 0:
            return out
        if self.bits == 8:  # straight into the wire's buffer
            self.quantize(rows, out["codes"].view(torch.int8), out["scales"], state)
            return out
        codes = torch.empty(num_rows, n, dtype=torch.int8, device=rows.device)
        self.quantize(rows, codes, out["scales"], state)
        if self.bits is None:
            kernels.pack_trits(codes, out["codes"])
        else:
            kernels.pack((codes > 0).view(torch.uint8) if self.bits == 1 else codes, self.bits, out["codes"])
        return out

    def codes(self, encoded: Encoded) -> Tensor:
        """int8 ``[R, n]``."""
        packed, n = encoded["codes"], encoded.n
        if self.bits is None:
            return kernels.unpack_trits(packed, n)
        if self.bits == 8:
            return packed.view(torch.int8)
        unsigned = kernels.unpack(packed, self.bits, n, torch.uint8)
        if self.bits == 1:
            return unsigned.mul_(2).sub_(1).view(torch.int8)
        sign = 1 << (self.bits - 1)
        return unsigned.bitwise_xor_(sign).sub_(sign).view(torch.int8)

    def decode(self, encoded: Encoded) -> Tensor:
        """Float32 rows."""
        return kernels.absmax_dequantize(self.codes(encoded), encoded["scales"], self.block_size(encoded.n))

    def decode_sum(self, encoded: Encoded) -> Tensor:
        """The sum over rows, from int8 codes: decoded rows are never held."""
        return kernels.absmax_dequantize_sum(self.codes(encoded), encoded["scales"], self.block_size(encoded.n))


def as_scales(sizes: Tensor, levels: float = 1) -> Tensor:
    """Float32 scales: float64 ``sizes`` of blocks by the number of levels that they are cut into.

    Below the smallest normal float32 a scale is 0, not finite it is NaN, and a finite one never overflows.
    """
    # by a tensor, because CUDA multiplies by the reciprocal when it divides by a number
    scales = (sizes / torch.full_like(sizes, levels)).clamp(max=HUGE).float()
    return torch.where(torch.isfinite(sizes), torch.where(scales >= TINY, scales, 0), torch.nan)


def block_lengths(n: int, block_size: int, device: torch.device, power: float = 1) -> Tensor:
    """float64 ``[blocks]``: how many elements each block of a row really has (the last may be short), to ``power``."""
    blocks = math.ceil(n / block_size)
    lengths = torch.full((blocks,), block_size**power, dtype=torch.float64, device=device)
    lengths[-1:] = (n - block_size * (blocks - 1)) ** power
    return lengths


def require_block(key: str, size: int | None) -> None:
    """Refuse blocks whose scales would cost more than their codes, and blocks too long to work on in cache."""
    require(size is None or 8 <= size <= 1 << 20, key, size, "between 8 and 1048576")
