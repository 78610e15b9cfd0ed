"""Count-sketches, and what they show of the vector that was sketched.

The hash function takes blocks of 32 coordinates at a time, so that a sketch is made of whole vectors: block b goes to
a random one of the windows of 32 columns, rotated by a random number of places,

    h(i) = 32 H(b) + ((i + R(b)) mod 32),    s(i) = +1 or -1 by bit (i mod 32) of S(b),    b = floor(i / 32)

with one hash for H and R and another for the 32 bits of S. What Count-Sketch asks of its functions (Charikar, Chen and
Farach-Colton, ICALP 2002) is that two coordinates meet with probability 1 / columns at most, and that signs are
independent in pairs. Both hold: coordinates of different blocks are in one window with probability 32 / columns and
there in one column with probability 1 / 32, both drawn independently of the other block's; those of one block never
meet; and all signs are bits of their own. So the estimate of x_i by a single function,
x_i + sum of s(i) s(i') x_i' over those that meet it, is unbiased, with variance of at most ||x||^2 / columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class SketchKernels(Protocol):
    """Makes count-sketches of rows and estimates coordinates from them.

    A key names one function h from coordinates to columns, whose number is a multiple of 32, and one sign function s.
    """

    def count_sketch(self, rows: Tensor, keys: Sequence[tuple[int, int]], out: Tensor) -> None:
        """Write the count-sketch of each of ``rows`` float32 ``[R, n]`` to ``out`` float32 ``[R, len(keys), columns]``.

        Every coordinate is added, with its sign, to its column of every key, in ascending order (on CUDA in any order:
        sums may differ by rounding).
        """
        ...

    def estimate(self, sketch: Tensor, keys: Sequence[tuple[int, int]], out: Tensor) -> None:
        """Write the median over keys of each coordinate's signed column to ``out`` float32 ``[n]``.

        ``sketch``: float32 ``[len(keys), columns]``, finite; the number of ``keys`` is odd. Zero has no sign.
        """
        ...
