"""Codes of three states, five to a byte: 3^5 = 243."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class TritKernels(Protocol):
    """Packs codes of -1, 0 and 1 five to a byte, and unpacks them."""

    def pack(self, codes: Tensor, packed: Tensor) -> None:
        """Write ``codes`` int8 ``[R, n]`` to ``packed`` uint8 ``[R, ceil(n / 5)]``.

        Byte j is the sum of (code[5j + i] + 1) * 3^i for i from 0 to 4; codes beyond n count as -1.
        """
        ...

    def unpack(self, packed: Tensor, n: int) -> Tensor:
        """The codes that `pack` wrote, as int8 ``[R, n]``."""
        ...
