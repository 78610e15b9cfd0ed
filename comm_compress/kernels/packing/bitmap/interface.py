"""Bitmaps with few ones: a bit for every element, one where the element is sent."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class BitmapKernels(Protocol):
    """Turns places into bitmaps and back. Bit j of a row is bit ``j % 8`` of byte ``j // 8``."""

    def mark_bits(self, places: Tensor, bitmap: Tensor) -> None:
        """Write ones at the distinct ``places`` int32 ``[R, k]`` of ``bitmap`` uint8 ``[R, m]``, zeros elsewhere."""
        ...

    def marked_bits(self, bitmap: Tensor, k: int) -> Tensor:
        """The places of the first ``k`` ones of each row of ``bitmap`` uint8 ``[R, m]``: int32 ``[R, k]``, ascending.

        Every row must hold ``k`` ones.
        """
        ...
