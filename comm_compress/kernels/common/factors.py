"""The lines of matrices side by side in a row, and which of them go as they are: what all implementations share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


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
    ``num_values``, ``num_elements``: of all, and of whole lines alone. Of every element of a whole line, int64
    ``[num_elements]``: ``of_whole``, the number of its line; ``begin`` and ``apart``, where it would lie in a row if
    its line were the matrix's first, and how far apart lines are; ``in_values``, its place in the values.
    ``first_lines`` int64 ``[whole lines]``: the number of its matrix's first line among all.
    """

    def __init__(self, shapes: Sequence[LineShape], device: torch.device) -> None:
        self.shapes = tuple(shapes)
        self.num_values = sum(s.long * s.r + s.whole * s.short for s in shapes)
        self.num_elements = sum(s.whole * s.short for s in shapes)
        parts: list[list[Tensor]] = [[torch.arange(0)] for _ in range(5)]
        line = value = first = 0
        for s in shapes:
            number = torch.arange(s.whole * s.short)
            of_line, inside = number // s.short, number % s.short
            begin, apart = s.start + inside * s.apart, torch.full_like(number, s.line_apart)
            firsts, values = torch.full((s.whole,), first), value + s.long * s.r + number
            for part, more in zip(parts, (line + of_line, begin, apart, values, firsts), strict=True):
                part.append(more)
            line, value, first = line + s.whole, value + s.long * s.r + s.whole * s.short, first + s.long
        self.of_whole, self.begin, self.apart, self.in_values, self.first_lines = (
            torch.cat(part).to(device) for part in parts
        )

    @functools.cached_property
    def table(self) -> npt.NDArray[np.int64]:
        """The shapes, for the loops of a CPU kernel: int64 ``[matrices, 7]``."""
        return np.array(self.shapes, np.int64).reshape(-1, len(LineShape._fields))


def elements(lines: Lines, index: Tensor) -> Tensor:
    """Where in a row the elements of whole lines lie: int64 ``[R, num_elements]``."""
    return index.index_select(1, lines.of_whole).mul_(lines.apart).add_(lines.begin)
