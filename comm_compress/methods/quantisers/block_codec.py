"""Small codes times a scale for every block of a row: what most quantisers send."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.state import Key, State
from comm_compress.core.traits import Traits
from comm_compress.kernels import BlockCode, Residual
from comm_compress.methods.quantisers.fused_codec import FusedCodec
from comm_compress.registry import require


class BlockCodec(FusedCodec):
    """value = code * scale of its block. A method says which `BlockCode` that is; the arithmetic is a fused kernel.

    A scale that is NaN makes its whole block NaN.
    """

    traits = Traits(for_activations=True)

    def __init__(self, code: BlockCode) -> None:
        self.code = code
        self.traits = replace(self.traits, unbiased=code.rounding == "stochastic" and code.clip_sigmas == 0)

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The layout of a row: scales first (they need the alignment), then the packed codes."""
        return _layout(self.code, n)

    def add_into(self, encoded: Encoded, out: Tensor, memory: Tensor) -> None:
        """Decode and add in one pass over memory."""
        if out.numel():
            kernels.blocks(out).decode_add(encoded["codes"], encoded["scales"].float(), self.code, out)

    def encode_change(self, row: Tensor, expected: Tensor, memory: Tensor, state: State) -> Encoded | None:
        """Subtract and encode in one pass over memory. A block that is not finite shows in its scale."""
        if not row.numel():
            return super().encode_change(row, expected, memory, state)
        out = state.message(row.unsqueeze(0), self.layout(row.numel(), torch.float32))
        scales, kernel = self._float_scales(out), kernels.blocks(row)
        good = kernel.encode_difference(row, expected, self.code, self._key(state), out["codes"], scales)
        self._set_scales(out, scales)
        # a finite difference as large as floats are may have such a scale too
        return out if good or bool(kernels.finite(row).difference(row, expected, memory)) else None

    def _encode(self, rows: Tensor, out: Encoded, residual: Residual | None, state: State) -> None:
        scales = self._float_scales(out)
        kernels.blocks(rows).encode(rows, self.code, self._key(state), out["codes"], scales, residual)
        self._set_scales(out, scales)

    def _key(self, state: State) -> Key | None:
        return state.key("rounding") if self.code.rounding == "stochastic" else None

    def _float_scales(self, out: Encoded) -> Tensor:
        """Where kernels write scales: the message's own, unless these are shorter."""
        return torch.empty_like(out["scales"], dtype=torch.float32) if self.code.short_scales else out["scales"]

    def _set_scales(self, out: Encoded, scales: Tensor) -> None:
        if self.code.short_scales:
            out["scales"].copy_(scales)  # exact

    def _decode(self, encoded: Encoded, out: Tensor) -> None:
        kernels.blocks(out).decode(encoded["codes"], encoded["scales"].float(), self.code, out)

    def _sum(self, encoded: Encoded, out: Tensor) -> None:
        kernels.blocks(out).decode_sum(encoded["codes"], encoded["scales"].float(), self.code, out)


@functools.lru_cache(maxsize=1024)  # units times directions
def _layout(code: BlockCode, n: int) -> Layout:
    scales = torch.bfloat16 if code.short_scales else torch.float32
    return Layout(
        Field("scales", scales, code.blocks(n), "metadata"), Field("codes", torch.uint8, code.code_bytes(n), "values")
    )


def require_block(key: str, size: int | None) -> None:
    """Refuse blocks that begin inside a byte, whose scales cost more than their codes, or that outgrow the caches."""
    good = size is None or (8 <= size <= 1 << 20 and size % 8 == 0)
    require(good, key, size, "a multiple of 8 between 8 and 1048576")
