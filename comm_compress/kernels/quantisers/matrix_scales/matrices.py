"""Matrices side by side in a vector, and the scales of their rows and columns: what all implementations share."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

TINY = torch.finfo(torch.float32).tiny
NOTHING = 255  # the byte of a row or column that is zero, or 2^64 times smaller than its matrix's largest
TOGETHER = 64  # rows whose squares are added up before those of others: the same sums on any number of threads

FACTORS = torch.tensor([*(2.0 ** (-code / 4) for code in range(NOTHING)), 0.0])
"""float32 ``[256]``: what the byte of a scale stands for, as a share of the largest scale."""

EDGES = torch.tensor([2.0 ** (-(code + 0.5) / 2) for code in reversed(range(NOTHING))], dtype=torch.float64)
"""float64 ``[255]``, ascending: shares of the largest mean square at which bytes change."""

Table = npt.NDArray[np.int64]


class Shape(NamedTuple):
    """A matrix ``[a, b]``, neither of them 0; ``columns``: have its columns scales of their own?"""

    a: int
    b: int
    columns: bool


class Quantiser(NamedTuple):
    """How matrices are quantised: rows' scales from mean squares, codes from scales.

    ``own``, ``beside``: what the mean square of a row of the matrices, and that of the same row of what lies beside
    them, are multiplied by; the larger one gives the row's scale (what lies beside counts up to a limit, where there is
    one: `MatrixScaleKernels.encode`). ``step``: rows' scales are multiplied by it in the end. ``dead_zone``, ``keep``:
    as for `MatrixScaleKernels.quantise`.
    """

    step: float
    dead_zone: float
    own: float = 1.0
    beside: float = 0.0
    keep: bool = True


class Tables(NamedTuple):
    """Where everything lies, for loops over all matrices at once."""

    rows: Table
    """``[rows, 3]``: first element, width, first column's scale; a one for every column where they have none."""
    parts: Table
    """``[parts, 3]``: of the rows whose columns are summed together: first, one past the last, place of the sums."""
    sums: Table
    """``[matrices with columns' scales, 5]``: place of the first part's sums, parts, width, first column's scale, a."""
    heights: Table
    widths: Table
    """``[matrices]``: as in `Matrices`."""
    ones: int
    """How many ones follow the columns' scales."""
    shapes: Table
    """``[matrices, 4]``: first element, rows, columns, have columns scales of their own?"""


class Matrices:
    """Matrices of these ``shapes``, which lie one after another in a vector.

    ``heights``, ``widths`` int64 ``[matrices]``: how many scales rows and columns have (0: none of their own);
    ``num_rows``, ``num_columns``: all of them. ``num_lines``: the columns of matrices whose columns have scales,
    and the rows of all others.
    """

    def __init__(self, shapes: tuple[Shape, ...], device: torch.device) -> None:
        self.shapes = shapes
        heights, widths = [s.a for s in shapes], [s.b * s.columns for s in shapes]
        self.num_rows, self.num_columns = sum(heights), sum(widths)
        self.num_lines = sum(s.b if s.columns else s.a for s in shapes)
        self.heights = torch.tensor(heights, dtype=torch.int64, device=device)
        self.widths = torch.tensor(widths, dtype=torch.int64, device=device)
        self.ones = torch.ones(max((s.b for s in shapes if not s.columns), default=0), device=device)

    @functools.cached_property
    def lengths(self) -> torch.Tensor:
        """How many elements each row has, int64 ``[rows]``."""
        of_matrices = torch.tensor([s.b for s in self.shapes], dtype=torch.int64, device=self.heights.device)
        return of_matrices.repeat_interleave(self.heights, output_size=self.num_rows)

    @functools.cached_property
    def tables(self) -> Tables:
        """For the loops of a kernel; in the CPU's memory."""
        rows, parts, sums = [], [], []
        start = row = column = place = 0
        matrices = []
        for a, b, columns in self.shapes:
            matrices.append((start, a, b, columns))
            first_column = column if columns else self.num_columns
            rows.append(np.stack([start + b * np.arange(a), np.full(a, b), np.full(a, first_column)], 1))
            if columns:
                edges = [*range(row, row + a, TOGETHER), row + a]
                sums.append((place, len(edges) - 1, b, column, a))
                for first, last in itertools.pairwise(edges):
                    parts.append((first, last, place))
                    place += b
                column += b
            start, row = start + a * b, row + a
        whole = np.concatenate(rows) if rows else np.empty((0, 3))
        sized = ((whole, 3), (parts, 3), (sums, 5), (matrices, 4))
        of_rows, of_parts, of_sums, of_matrices = (np.array(t, np.int64).reshape(-1, w) for t, w in sized)
        heights = np.array([s.a for s in self.shapes], np.int64)
        widths = np.array([s.b * s.columns for s in self.shapes], np.int64)
        return Tables(of_rows, of_parts, of_sums, heights, widths, self.ones.numel(), of_matrices)


@functools.lru_cache(maxsize=1024)  # units times directions
def matrices_of(shapes: tuple[Shape, ...], device: torch.device) -> Matrices:
    """The `Matrices` of these shapes, made once.

    They take 24 bytes a row and more on a CPU, which is little beside rows of a hundred elements.
    """
    return Matrices(shapes, device)
