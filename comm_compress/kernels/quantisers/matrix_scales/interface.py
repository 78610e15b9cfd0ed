"""Matrices as small integers times a scale of their row and one of their column.

    x[i, j] ~ codes[i, j] * rows[i] * columns[j]

The matrices lie one after another in a vector (`Matrices`), and so do their scales. Scales of columns are followed by
ones, for matrices whose columns have none.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from comm_compress.kernels.quantisers.matrix_scales.matrices import Matrices, Quantiser
from comm_compress.kernels.tools.scratch import Scratch


class MatrixScaleKernels(Protocol):
    """Finds the scales of rows and columns, sends them in a byte each, and quantises by them."""

    def row_mean_squares(self, x: Tensor, matrices: Matrices) -> Tensor:
        """The mean square of each row of the matrices in ``x`` float32 ``[n]``: float64 ``[rows]``.

        Squares are summed in no defined order: a scale is sent in quarters of an octave, which rounding does not
        change.
        """
        ...

    def change_mean_squares(self, x: Tensor, old: Tensor, matrices: Matrices) -> Tensor:
        """`row_mean_squares` of ``x - old``, both float32 ``[n]``."""
        ...

    def column_mean_squares(self, x: Tensor, rows: Tensor, matrices: Matrices) -> Tensor:
        """The mean square of each column that has a scale, after rows were divided by theirs: float64 ``[columns]``.

        ``rows`` float32 ``[rows]`` are the rows' scales. Squares are summed in no defined order.
        """
        ...

    def line_mean_squares(self, rows: Tensor, matrices: Matrices) -> Tensor:
        """Of several vectors ``rows`` float32 ``[R, n]`` at once, float64 ``[R, lines]``: matrix after matrix the mean
        squares of its columns where these have scales, and else of its rows.

        The sums are those of `column_mean_squares`, where rows have scales of 1, and of `row_mean_squares`.
        """
        ...

    def add_noise(self, x: Tensor, sizes: Tensor, key: tuple[int, int], matrices: Matrices) -> None:
        """Add random numbers, from minus a half to a half of a row's size, to the matrices in ``x`` float32 ``[n]``.

        ``sizes`` float32 ``[rows]``; rows of size 0 are left alone. Element i has number i of `RandomKernels.uniform`
        under the ``key``.
        """
        ...

    def encode_scales(self, mean_squares: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """A byte for the scale of each row (or column), and the largest scale of each matrix: uint8 ``[k]``, float32.

        ``mean_squares`` float64 ``[k]`` of all matrices' rows (or columns), ``lengths`` int64: how many each matrix
        has. The largest scale is the root of the largest mean square. It is 0 where it would be less than the smallest
        normal number, and NaN unless all of the matrix is finite; then its bytes mean nothing.
        """
        ...

    def decode_scales(self, codes: Tensor, lengths: Tensor, peaks: Tensor) -> Tensor:
        """The scales that bytes stand for, float32 ``[k]``; ``peaks`` are the matrices' largest.

        0: the row (or column) is zero. NaN or infinite: the matrix is not finite.
        """
        ...

    def quantise(
        self,
        x: Tensor,
        rows: Tensor,
        columns: Tensor,
        dead_zone: float,
        codes: Tensor,
        matrices: Matrices,
        keep: bool = True,
    ) -> None:
        """Write ``codes`` int8 ``[n]`` of ``x`` float32 ``[n]``, and, to ``keep`` it, leave in ``x`` what they lose.

        With t = x / (rows columns), a code's magnitude is floor(|t| + 1 - dead_zone), 127 at most. Of a row whose scale
        is not finite, all is lost: codes 0, and NaN in ``x``, if it is kept.
        """
        ...

    def add_decoded(self, codes: Tensor, rows: Tensor, columns: Tensor, out: Tensor, matrices: Matrices) -> None:
        """Add what ``codes`` int8 ``[n]`` stand for to ``out`` float32 ``[n]``."""
        ...

    def encode(
        self,
        x: Tensor,
        matrices: Matrices,
        quantiser: Quantiser,
        codes: Tensor,
        octets: Tensor,
        peaks: Tensor,
        beside: Tensor | None = None,
        most: Tensor | None = None,
    ) -> None:
        """All of the above for the matrices in ``x`` float32 ``[n]``, in which what codes lose is left if it is kept.

        ``beside`` float32 ``[n]``: what else gives the rows' scales (`Quantiser`); its mean squares, multiplied, count
        up to ``most`` float64 ``[rows]``. Written: ``codes`` int8 ``[n]``;
        ``octets`` uint8, the bytes of the rows' scales ``[rows]`` and those of the columns' ``[columns]``; ``peaks``
        float32 ``[2 * matrices]``, the largest of the rows' and of the columns'.
        """
        ...

    def encode_change(
        self,
        x: Tensor,
        old: Tensor,
        matrices: Matrices,
        quantiser: Quantiser,
        codes: Tensor,
        octets: Tensor,
        peaks: Tensor,
        scratch: Scratch,
        most: Tensor | None = None,
    ) -> bool:
        """`encode` of ``x - old``, both float32 ``[n]``, beside ``x``, without keeping what codes lose.

        No columns have scales of their own. False, and what is written means nothing, unless all changes are finite.
        """
        ...

    def add(self, codes: Tensor, octets: Tensor, peaks: Tensor, out: Tensor, matrices: Matrices) -> None:
        """Add what `encode` made of a vector to ``out`` float32 ``[n]``."""
        ...
