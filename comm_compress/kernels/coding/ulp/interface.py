"""Changes of floats in units in the last place (ulp), as symbols for an entropy coder and bits that none can shorten.

The bit pattern of a float, its magnitude inverted when it is negative, orders like the float. The difference of two
such integers, modulo 2^width and folded to z = 0, 1, 2, ... (0, -1, 1, -2, 2, ...), is split in a symbol and
raw bits, as in an exponential Golomb code with 8 classes an octave:

    z < 16:  symbol z
    else, z of b bits:  symbol 16 + 8 (b - 5) + the 3 bits below the leading one, and the b - 4 lowest bits raw

240 symbols cover 32 bits. Raw bits are the sign and places too fine for an entropy coder to use.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from comm_compress.kernels.tools.scratch import Scratch, fresh


class UlpKernels(Protocol):
    """Compares and changes floats by their bit patterns; NaN and -0 are patterns like any other.

    Floats are contiguous ``[n]``: float32, bfloat16 or float16.
    """

    def exponent_counts(self, values: Tensor) -> Tensor:
        """How many of ``values`` ``[n]`` have each biased exponent: int64 ``[256]``."""
        ...

    def by_exponent(self, values: Tensor, table: Tensor, out: Tensor) -> Tensor:
        """Return ``out`` uint8 ``[n]``, with what ``table`` uint8 ``[256]`` has for the exponent of each value."""
        ...

    def difference(self, old: Tensor, new: Tensor, scratch: Scratch = fresh) -> tuple[Tensor, Tensor]:
        """The change from ``old`` to ``new``: symbols uint8 ``[n]``, and a little-endian stream of raw bits, uint8.

        Both tensors have the same dtype. The result may lie in memory of ``scratch``.
        """
        ...

    def apply(self, values: Tensor, symbols: Tensor, raw_bits: Tensor) -> Tensor:
        """Turn ``values``, equal to ``old``, into ``new`` in place, bit for bit, and return them."""
        ...
