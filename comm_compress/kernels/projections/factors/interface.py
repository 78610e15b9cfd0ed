"""Thin factors of many small matrices, and lines that go as they are: what is done beside products, in one call."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from comm_compress.kernels.projections.factors.lines import Lines


class FactorKernels(Protocol):
    """Weighs the lines of factors, and takes their size away, so that products neither overflow nor vanish."""

    def take(self, rows: Tensor, lines: Lines, index: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Take whole lines from ``rows`` float32 ``[R, n]``, times their weights, which become 0.

        ``weights`` float32 ``[R, sum of long]``; ``index`` int64 ``[R, sum of whole]``: which lines, counted in their
        matrix. Returned: values float32 ``[R, num_values]``, of which those of left factors are yet to be written, and
        the elements' places in rows, int64 ``[R, num_elements]``.
        """
        ...

    def places(self, lines: Lines, index: Tensor) -> Tensor:
        """Where in a row the elements of whole lines lie: int64 ``[R, num_elements]``; ``index`` as for `take`."""
        ...

    def spread(self, values: Tensor, lines: Lines, index: Tensor, exponents: Tensor) -> Tensor:
        """Return ``values`` float32 ``[R, num_values]`` times two to the power of their line's exponent.

        ``exponents`` int8 ``[R, sum of long]``; ``index`` as for `take`.
        """
        ...

    def powers_of(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """By which power of two each of ``lengths`` float32 ``[R, k]`` is divided to lie between 1/2 and 1.

        Its exponent e, int8, from -126 to 127, and 2^-e, float32; 0 and 1 for a length that is 0 or not finite.
        """
        ...

    def weigh(self, factors: Tensor, weights: Tensor) -> None:
        """Multiply ``factors`` float32 ``[R, r, k]`` by ``weights`` ``[R, k]``, `scale` them, and multiply again.

        In place; ``factors`` are contiguous.
        """
        ...

    def scale(self, factors: Tensor) -> None:
        """Divide each of ``factors`` float32 ``[R, a, b]``, contiguous, by its largest magnitude, in place.

        Not where that is 0 or NaN.
        """
        ...
