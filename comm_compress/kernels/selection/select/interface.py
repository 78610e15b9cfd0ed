"""Choosing elements by magnitude.

Magnitudes are compared as the bits of float32 values without their sign: infinity is above every number, and NaN above
infinity. With a `Residual`, elements are chosen from its target, which is left in ``residual.new``: choosing then costs
no second pass.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.tools.scratch import Scratch, fresh


class SelectKernels(Protocol):
    """Finds the elements of each row that are large enough, in ascending order of their places."""

    def largest(
        self,
        rows: Tensor,
        places: Tensor,
        values: Tensor,
        residual: Residual | None = None,
        scratch: Scratch = fresh,
    ) -> None:
        """Write where the k largest of each row lie, ascending, and what they are; of equal magnitudes the first.

        ``rows`` float32 ``[R, n]``; ``places`` int32 and ``values`` float32, both ``[R, k]``, contiguous, are written.
        """
        ...

    def at_least(
        self, rows: Tensor, floors: Tensor, residual: Residual | None = None, scratch: Scratch = fresh
    ) -> list[tuple[Tensor, Tensor]]:
        """For each row the ascending places (int32) of the elements that reach its floor, and those elements (float32).

        ``rows`` float32 ``[R, n]``; ``floors`` float32 ``[R]``, not negative. What is returned may lie in ``scratch``.
        """
        ...
