"""Narrower floats and sums of rows of them: definitions in torch operations."""

from __future__ import annotations

from torch import Tensor

from comm_compress.kernels.residual import Residual


def cast_with_feedback(rows: Tensor, residual: Residual, out: Tensor) -> None:
    """Round the residual's target of float ``rows`` ``[R, n]`` to ``out`` (bfloat16 or float16), to nearest even.

    ``residual.new`` becomes what that loses.
    """
    target = residual.target(rows)
    out.copy_(target)
    target.sub_(out)


def sum_rows(rows: Tensor, out: Tensor) -> None:
    """The sum of float ``rows`` ``[R, n]`` in float32, accumulated in row order, to ``out`` float32 ``[n]``."""
    out.zero_()
    for row in rows:
        out += row
