"""Narrower floats, whole numbers, and sums of rows of them: definitions in torch operations."""

from __future__ import annotations

from torch import Tensor

from comm_compress.kernels.common.residual import Residual


def cast_with_feedback(rows: Tensor, residual: Residual, out: Tensor) -> None:
    """Round the residual's target of float ``rows`` ``[R, n]`` to ``out`` (bfloat16 or float16), to nearest even.

    ``residual.new`` becomes what that loses.
    """
    target = residual.target(rows)
    out.copy_(target)
    target.sub_(out)


def round_to_bytes(rows: Tensor, factor: Tensor, codes: Tensor) -> None:
    """Write ``codes`` int8 ``[R, n]``: float ``rows`` times ``factor`` (a float32 scalar), to nearest even.

    No product's magnitude may exceed 127; where ``factor`` is 0 so are all codes, whatever the rows hold.
    """
    codes.copy_((rows.float() * factor).nan_to_num_(0).round_())


def scale_bytes(codes: Tensor, scale: Tensor, out: Tensor) -> None:
    """``codes`` int8 ``[R, n]`` times ``scale`` (a float32 scalar) to ``out`` float32 ``[R, n]``."""
    out.copy_(codes).mul_(scale)


def subtract_bytes(codes: Tensor, scale: Tensor, out: Tensor) -> None:
    """``codes`` int8 ``[R, n]`` times ``scale`` (a float32 scalar) taken from ``out`` float32 ``[R, n]``."""
    out.sub_(codes * scale)


def sum_rows(rows: Tensor, out: Tensor) -> None:
    """The sum of float ``rows`` ``[R, n]`` in float32, accumulated in row order, to ``out`` float32 ``[n]``."""
    out.zero_()
    for row in rows:
        out += row
