"""Whether anything has changed."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class ChangeKernels(Protocol):
    """Compares tensors bit by bit."""

    def same_bits(self, a: Tensor, b: Tensor) -> bool:
        """Are ``a`` and ``b`` the same bits (also where both are NaN)? Of one shape and dtype, 2 or 4 bytes wide."""
        ...
