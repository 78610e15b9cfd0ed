"""The lines of matrices side by side in a row, and which of them go as they are: what all implementations share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class LineShape(NamedTuple):
    """A matrix of ``long`` lines of ``short`` elements: its first element in a row, and how far lines, and elements of
    a line, are apart. Its left factor has ``r`` rows, and ``whole`` lines go as they are.
    """

    start: int
    long: int
    short: int
    line_apart: int
    apart: int
    r: int
    whole: int


class Lines:
    """Where everything of these matrices lies, in rows and in values.

    Values: of each matrix the left factor ``[r, long]``, then its whole lines ``[whole, short]``.
    ``num_values``, ``num_elements``: of all, and of whole lines alone. Cheap to make: which lines go as they are may
    change with every message.
    """

    def __init__(self, shapes: Sequence[LineShape]) -> None:
        self.shapes = tuple(shapes)
        self.num_values = sum(s.long * s.r + s.whole * s.short for s in shapes)
        self.num_elements = sum(s.whole * s.short for s in shapes)

    @functools.cached_property
    def table(self) -> npt.NDArray[np.int64]:
        """The shapes, for the loops of a CPU kernel: int64 ``[matrices, 7]``."""
        return np.array(self.shapes, np.int64).reshape(-1, len(LineShape._fields))
