"""Bit streams of codes that are all of the same width."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class BitKernels(Protocol):
    """Packs codes of any width into bytes without gaps, and unpacks them.

    A row is one little-endian bit stream: code i takes bits ``i * bits`` to ``(i + 1) * bits``, and bit j of the stream
    is bit ``j % 8`` of byte ``j // 8``.
    """

    def pack(self, codes: Tensor, bits: int, packed: Tensor) -> None:
        """Write the low ``bits`` of ``codes`` ``[R, n]`` to ``packed`` uint8 ``[R, ceil(n * bits / 8)]``.

        ``codes`` are int32, int8 or uint8; ``bits`` is from 1 to 31. Unused bits of the last byte are zero.
        """
        ...

    def unpack(self, packed: Tensor, bits: int, n: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """The codes that `pack` wrote, unsigned, as ``[R, n]`` of ``dtype`` (int32, or uint8 for at most 8 bits)."""
        ...
