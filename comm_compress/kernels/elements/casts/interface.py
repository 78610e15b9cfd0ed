"""Narrower floats, floats as whole numbers in a byte, and sums of rows of them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual


class CastKernels(Protocol):
    """Converts rows to narrower dtypes and back, without a copy in between."""

    def cast_with_feedback(self, rows: Tensor, residual: Residual, out: Tensor) -> None:
        """Round the residual's target of ``rows`` ``[R, n]`` to ``out`` (bfloat16 or float16), ties to even.

        ``rows`` are of any float dtype. ``residual.new`` becomes what the rounding loses.
        """
        ...

    def round_to_bytes(self, rows: Tensor, factor: Tensor, codes: Tensor) -> None:
        """Write ``rows`` ``[R, n]`` times ``factor``, rounded with ties to even, to ``codes`` int8 ``[R, n]``.

        ``rows`` are of any float dtype, ``factor`` is a float32 scalar, and no product's magnitude may exceed 127.
        Where ``factor`` is 0 so are all codes, whatever the rows hold.
        """
        ...

    def scale_bytes(self, codes: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write ``codes`` int8 ``[R, n]`` times ``scale``, a float32 scalar, to ``out`` float32 ``[R, n]``."""
        ...

    def subtract_bytes(self, codes: Tensor, scale: Tensor, out: Tensor) -> None:
        """Subtract ``codes`` int8 ``[R, n]`` times ``scale``, a float32 scalar, from ``out`` float32 ``[R, n]``."""
        ...

    def sum_rows(self, rows: Tensor, out: Tensor) -> None:
        """Write the sum of ``rows`` ``[R, n]`` of any float dtype to ``out`` float32 ``[n]``, adding in row order."""
        ...
