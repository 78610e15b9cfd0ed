"""Block codes: small integers, or 8-bit floats, times a scale for every block of a row (`block_code.BlockCode`).

Rounding, scales and packing are defined in `reference`, one function for each.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.quantisers.blocks.block_code import BlockCode


class BlockKernels(Protocol):
    """Encodes rows in a block code, and decodes them one by one or as their sum."""

    def encode(
        self,
        rows: Tensor,
        code: BlockCode,
        key: tuple[int, int] | None,
        codes: Tensor,
        scales: Tensor,
        residual: Residual | None = None,
    ) -> None:
        """Write the ``codes`` and ``scales`` of ``rows`` ``[R, n]``, n > 0, of any float dtype.

        ``codes`` uint8 ``[R, code.code_bytes(n)]`` and ``scales`` float32 ``[R, code.blocks(n)]`` may be strided views
        of a message. ``key`` names the random numbers of stochastic rounding: `RandomKernels.noise_bits` as fractions.
        With a ``residual`` its target is encoded instead, and ``residual.new`` becomes what the codes lose of it (NaN
        where a block is not finite).
        """
        ...

    def encode_difference(
        self, a: Tensor, b: Tensor, code: BlockCode, key: tuple[int, int] | None, codes: Tensor, scales: Tensor
    ) -> bool:
        """Write the ``codes`` and ``scales`` of ``a - b``, both ``[n]`` and taken as float32, as `encode` would.

        Are all scales finite? They are not where the difference is not.
        """
        ...

    def decode(self, codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
        """Write every code times its block's scale to ``out`` ``[R, n]`` of any float dtype."""
        ...

    def decode_sum(self, codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
        """Write the sum of the decoded rows to ``out`` float32 ``[n]``.

        Rows are added in ascending order. Where the code rotates, the sum is rotated back, once.
        """
        ...

    def decode_add(self, codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
        """Add what `decode` writes for a single row to ``out`` ``[n]`` of any float dtype, in float32, rounded once."""
        ...
