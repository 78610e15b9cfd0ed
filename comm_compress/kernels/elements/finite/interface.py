"""Whether numbers are finite, seen in one pass over memory."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class FiniteKernels(Protocol):
    """Looks for NaN and infinities in tensors of any float dtype and shape."""

    def all_finite(self, x: Tensor) -> Tensor:
        """Is all of ``x``, which is not empty, finite? A bool scalar on its device."""
        ...

    def difference(self, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        """Write ``a - b``, both ``[n]`` and taken as float32, to ``out`` float32 ``[n]``: is it finite?

        n is not 0. A bool scalar on the tensors' device.
        """
        ...
