"""The code that most quantisers send: small integers (or tiny floats) times a scale for every block of a row."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

Size = Literal["max", "l2", "mean"]
Rounding = Literal["nearest", "stochastic", "sign", "e4m3", "e5m2"]
TRITS = 5  # in a byte: 3^5 = 243


class BlockCode(NamedTuple):
    """How the elements x of a block become codes c and one float32 scale s, decoded to ``c * s``.

    ``block_size`` elements share a scale (a multiple of 8, so that blocks begin at whole bytes); None: the whole row.
    ``size`` of a block: max|x|, its 2-norm, or its mean magnitude; cut to ``clip_sigmas`` standard deviations about
    zero if that is less and not 0. s = size / ``levels``; s below the smallest normal float32 is 0, and all codes
    of such a block are 0; s of a block that is not finite is NaN. ``short_scales``: s is rounded to bfloat16, to
    the nearest, ties to even, at most its largest number.

    ``rounding``: c is the integer in -levels..levels "nearest" to x / s (ties to even), or one of the two around
    it at random ("stochastic": with t = x (1 / s), floor(t) or one more with probability t - floor(t)), or
    "sign": 1 or -1, or the nearest 8-bit float (e4m3, e5m2, levels its largest number).
    ``bits``: width of c on the wire, two's complement (floats: their bits); with 1, c is -1 or 1: x's sign (0 counts as
    positive), or, "stochastic", 1 with probability (1 + x / s) / 2. None: one of -1, 0, 1, five in a byte.
    ``rotate``: the normalised 32-point Hadamard rotation of every 32 elements comes before, its inverse after; the
    last n mod 32 elements of a row stay as they are.
    """

    block_size: int | None
    bits: int | None
    levels: int
    size: Size = "max"
    rounding: Rounding = "nearest"
    clip_sigmas: float = 0.0
    rotate: bool = False
    short_scales: bool = False

    def block(self, n: int) -> int:
        """Elements in a block of a row of ``n``."""
        return self.block_size or max(n, 1)

    def blocks(self, n: int) -> int:
        """Scales of a row of ``n``."""
        return math.ceil(n / self.block(n))

    def code_bytes(self, n: int) -> int:
        """Bytes of the codes of a row of ``n``."""
        return math.ceil(n / TRITS if self.bits is None else n * self.bits / 8)
