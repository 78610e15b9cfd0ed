"""Votes on the sign of every element: one bit an element, and a byte that says what each group holds."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class VoteKernels(Protocol):
    """Encodes signs, decodes them, and counts their majority."""

    def encode(self, rows: Tensor, group_size: int, key: tuple[int, int], marks: Tensor, bits: Tensor) -> None:
        """Write a mark for every group and the packed bits "x > 0" of ``rows`` ``[R, n]``, n > 0, of any float dtype.

        ``marks`` uint8 ``[R, ceil(n / group_size)]``: 0 for a group of zeros, 1 for a finite one, 2 for one that is not
        finite. ``bits`` uint8 ``[R, ceil(n / 8)]``. Element i of row r votes at random if it is zero: its bit is the
        lowest of ``random_bits(key)[r * n + i]``.
        """
        ...

    def decode(self, marks: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
        """Write -1 or 1, 0 in groups of zeros and NaN in those that are not finite, to ``out`` ``[R, n]`` of floats."""
        ...

    def majority(self, marks: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
        """Write R times the sign of the sum of the decoded rows to ``out`` float32 ``[n]``; NaN where one is NaN."""
        ...
