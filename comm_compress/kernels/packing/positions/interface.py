"""Ascending positions as unary steps and lower bits: what Elias-Fano and Rice codes have in common.

Position i becomes a number: ``position - i``, which never decreases (Elias-Fano), or the gap to the position before,
``position_i - position_(i-1) - 1`` (Rice). The lower ``low`` bits of the numbers go into one string, as they are. The
other string shows of each number's upper part the way from the number before (Elias-Fano) or from zero (Rice): so many
zeros, then a one.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class PositionKernels(Protocol):
    """Writes positions as two strings of bits, and reads them."""

    def encode(self, positions: Tensor, low: int, gaps: bool, upper: Tensor, lower: Tensor) -> None:
        """Write both strings, uint8 ``[R, ...]`` and just long enough, of ``positions`` int32 ``[R, k]``, k > 0.

        ``gaps``: code gaps (Rice), not distances from the number of the position (Elias-Fano).
        """
        ...

    def decode(self, upper: Tensor, lower: Tensor, low: int, gaps: bool, k: int) -> Tensor:
        """The positions that `encode` was given, as int32 ``[R, k]``."""
        ...

    def gap_steps(self, positions: Tensor, widths: int) -> list[int]:
        """For each ``low`` below ``widths``, the sum of all gaps' upper parts; ``positions`` int32 ``[1, k]``."""
        ...
