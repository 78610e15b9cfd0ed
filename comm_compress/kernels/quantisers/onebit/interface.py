"""One bit an element, and for every group the mean of its elements above zero and of those below."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual


class OneBitKernels(Protocol):
    """Replaces every element by the mean of the elements of its group that lie on the same side of zero."""

    def encode(
        self,
        rows: Tensor,
        group_size: int,
        above: Tensor,
        below: Tensor,
        bits: Tensor,
        residual: Residual | None = None,
    ) -> None:
        """Write both means of every group, and the packed bits "x >= 0", of ``rows`` ``[R, n]``, n > 0.

        ``rows`` are of any float dtype. ``above`` and ``below``, float32 ``[R, ceil(n / group_size)]``: the mean of the
        group's elements >= 0, and of those < 0; 0 where there are none. Sums are float64, in the order of
        `blocks.reference.lane_sums`. A NaN counts as below zero and makes both means NaN. ``bits`` is uint8
        ``[R, ceil(n / 8)]``. With a ``residual`` its target is encoded instead, and ``residual.new`` becomes what the
        code loses of it.
        """
        ...

    def decode(self, above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
        """Write the mean of every element's side to ``out`` ``[R, n]`` of any float dtype."""
        ...

    def decode_sum(self, above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
        """Write the sum of the decoded rows, added in ascending order, to ``out`` float32 ``[n]``."""
        ...
