"""Division of a rANS state by a frequency, without a division: a product's upper half, shifted.

Granlund and Montgomery, Division by invariant integers using multiplication, PLDI 1994; rounded down, with an addend,
where rounding up is not exact: Robison, N-bit unsigned division via N-bit multiply-add, ARITH 2005.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from comm_compress.kernels.coding.frequencies import PRECISION, Counts


class Reciprocals(NamedTuple):
    """For each frequency f: ``x // f == (x + addend) * factor >> 32 + shift`` for all x below ``f << 32 - PRECISION``.

    That is what a state is at most when it absorbs a symbol. All int64 ``[...]``, factors less than 2^32.
    """

    factor: Counts
    shift: Counts
    addend: Counts


def reciprocals_of(frequencies: Counts) -> Reciprocals:
    """Of frequencies from 0 (no matter what) to 2^12.

    Let 2^(k - 1) < f <= 2^k, and the factor m be 2^s / f for s = 31 + k, rounded. Rounded up it is too large by e / f;
    quotients are exact as long as x e <= 2^s, so if f e <= 2^(11 + k). Rounded down it is too small by (f - e) / f, and
    with x + 1 in place of x quotients are exact if f (f - e) <= 2^(11 + k). For k up to 12 one of the two holds.
    """
    f = frequencies.clip(1)
    k = np.ceil(np.log2(f)).astype(np.int64)  # exact for powers of two
    shift = (k - 1).clip(0)
    power = np.int64(1) << 32 + shift
    below, above = power // f, -(-power // f)
    too_large = f * (above * f - power) > power >> 32 - PRECISION
    factor = np.where(too_large, below, above)
    one = f == 1  # whose reciprocal does not fit into 32 bits: (x + 1) (2^32 - 1) >> 32 is x
    return Reciprocals(np.where(one, 2**32 - 1, factor), shift, (too_large | one).astype(np.int64))
