"""Signed powers of two, in 9 bits an element or in 8.

A magnitude between neighbours a < b, each zero or a power of two, becomes b where
floor((|x| - a) / (b - a) * 2^23) + noise >= 2^23. Noise is 2^22 without a ``key`` (to nearest, ties up), and with one
the upper 23 bits of `RandomKernels.noise_bits`, which makes the code unbiased. On float32's bits that is one addition
whose carry ends in the exponent.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual


class PowerKernels(Protocol):
    """Encodes rows as powers of two: with a whole exponent field each, or in a byte with a window for every block."""

    def encode(
        self,
        rows: Tensor,
        key: tuple[int, int] | None,
        exponents: Tensor,
        signs: Tensor,
        residual: Residual | None = None,
    ) -> None:
        """Write the exponent fields and the packed bits "x < 0" of the rounded ``rows`` ``[R, n]`` of any float dtype.

        ``exponents`` is uint8 ``[R, n]``, ``signs`` uint8 ``[R, ceil(n / 8)]``. Field 0 is zero; magnitudes stop at
        field 254, infinities and NaN get 255. With a ``residual`` its target is encoded instead, and ``residual.new``
        becomes what the code loses of it.
        """
        ...

    def decode(self, exponents: Tensor, signs: Tensor, out: Tensor) -> None:
        """Write the powers of two (field 255: infinity) to ``out`` ``[R, n]`` of any float dtype."""
        ...

    def decode_sum(self, exponents: Tensor, signs: Tensor, out: Tensor) -> None:
        """Write the sum of the decoded rows, added in ascending order, to ``out`` float32 ``[n]``."""
        ...

    def encode_window(
        self,
        rows: Tensor,
        key: tuple[int, int] | None,
        lowest: Tensor,
        codes: Tensor,
        residual: Residual | None = None,
    ) -> None:
        """Write the rounded ``rows`` ``[R, n]``, n > 0, in a byte an element, and where each block's window lies.

        ``lowest`` uint8 ``[R, ceil(n / 2048)]``: the exponent field of the block's smallest power, which is 126 below
        the one after its largest magnitude's and at least 1; 0 when the block is not finite. ``codes`` uint8 ``[R,
        n]``: "x < 0" in bit 7, below it 0 for zero or p for the power with the field p + lowest - 1 (anything, in a
        block that is not finite). With a ``residual`` its target is encoded instead, and ``residual.new`` becomes what
        the code loses of it.
        """
        ...

    def decode_window(self, lowest: Tensor, codes: Tensor, out: Tensor) -> None:
        """Write the powers of two, NaN in blocks that are not finite, to ``out`` ``[R, n]`` of any float dtype."""
        ...

    def decode_window_sum(self, lowest: Tensor, codes: Tensor, out: Tensor) -> None:
        """Write the sum of the decoded rows, added in ascending order, to ``out`` float32 ``[n]``."""
        ...
