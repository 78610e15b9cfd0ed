"""The matrices in one rank's rows that are worth two thin factors, and how long their lines are."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.segments import Ranges, Segment, other_columns
from comm_compress.kernels import Matrices, Shape
from comm_compress.kernels.projections.factors.lines import Lines, LineShape

WORTH_FACTORS = 2  # a matrix goes as factors when it has so many times their elements


class Matrix(NamedTuple):
    """Columns ``start`` on of a row hold an ``[a, b]`` matrix, which goes as factors of rank ``r``.

    A line is a row of a matrix that is taller than it is wide, and else a column. Its ``whole`` largest lines go as
    they are; the others have one length when it is ``scaled``.
    """

    start: int
    a: int
    b: int
    r: int
    whole: int
    scaled: bool

    @property
    def stop(self) -> int:
        """The column of the row that follows the matrix's last one."""
        return self.start + self.a * self.b

    @property
    def long(self) -> int:
        """How many lines the matrix has: its larger dimension."""
        return max(self.a, self.b)

    @property
    def short(self) -> int:
        """How many elements a line has: a row of a matrix that is taller than wide, and else a column."""
        return min(self.a, self.b)

    @property
    def line_shape(self) -> LineShape:
        """Its lines, as kernels see them."""
        line_apart, apart = (self.short, 1) if self.is_tall else (1, self.b)
        return LineShape(self.start, self.long, self.short, line_apart, apart, self.r, self.whole)

    @property
    def is_tall(self) -> bool:
        """Is a line a row of the matrix?"""
        return self.a >= self.b

    def within(self, rows: Tensor) -> Tensor:
        """The matrix that each of ``rows`` ``[R, n]`` holds, as a view ``[R, a, b]``."""
        return rows[:, self.start : self.stop].view(rows.shape[0], self.a, self.b)

    def lines(self, rows: Tensor) -> Tensor:
        """The lines of the matrix that each of ``rows`` ``[R, n]`` holds, as a view ``[R, long, short]``."""
        return self.within(rows) if self.is_tall else self.within(rows).mT


class Sizes(NamedTuple):
    """What the matrices of a row have of each thing, one number a matrix."""

    long: list[int]
    whole: list[int]
    exponents: list[int]
    right: list[int]
    values: list[int]
    """Two numbers a matrix: elements of the left factor, then those of the lines that go as they are."""


@functools.lru_cache(maxsize=1024)  # units times directions
def sizes_of(matrices: tuple[Matrix, ...]) -> Sizes:
    """Return the sizes of these matrices, each as a list over them."""
    return Sizes(
        [m.long for m in matrices],
        [m.whole for m in matrices],
        [m.long * m.scaled for m in matrices],
        [m.short * m.r for m in matrices],
        [part for m in matrices for part in (m.r * m.long, m.whole * m.short)],
    )


class RowPlan(NamedTuple):
    """What a row of a unit is made of: the matrices that go as factors, and the columns between them.

    ``along``: all of the row as matrices, those that go as factors and what lies between; ``lines``: which of its lines
    are those of the former. ``short`` float64: of every one of these, how many elements it has.
    ``groups``: matrices by the length of their lines.
    """

    others: Ranges
    along: Matrices
    lines: Tensor
    short: Tensor
    groups: tuple[tuple[int, ...], ...]

    def lengths(self, rows: Tensor) -> Tensor:
        """Return the 2-norms of all lines in float32 ``rows`` ``[R, n]``: float32 ``[R, sum of long]``."""
        squares = kernels.matrix_scales(rows).line_mean_squares(rows, self.along)
        return squares.index_select(1, self.lines).mul_(self.short).sqrt_().float()


class Arrangement(NamedTuple):
    """A row's plan, the matrices with what each message may choose anew, and where ``whole`` lines lie."""

    plan: RowPlan
    matrices: tuple[Matrix, ...]
    whole: Lines

    def with_lines(self, whole: Sequence[int]) -> Arrangement:
        """The same, but so many lines of each matrix go as they are."""
        matrices = tuple(m._replace(whole=count) for m, count in zip(self.matrices, whole, strict=True))
        return self._replace(matrices=matrices, whole=Lines([m.line_shape for m in matrices]))


@functools.lru_cache(maxsize=1024)  # units times directions
def arrangement_of(n: int, matrices: tuple[Matrix, ...], device: torch.device) -> Arrangement:
    """The `Arrangement` of rows of ``n`` elements that hold these matrices. Small, since messages may differ."""
    shapes = tuple((m.start, m.a, m.b) for m in matrices)
    return Arrangement(_plan(n, shapes, device), matrices, Lines([m.line_shape for m in matrices]))


@functools.lru_cache(maxsize=1024)
def _plan(n: int, shapes: tuple[tuple[int, int, int], ...], device: torch.device) -> RowPlan:
    """The plan of rows of ``n`` elements with matrices ``[a, b]`` from these columns on, as (column, a, b)."""
    matrices = [Matrix(*shape, r=0, whole=0, scaled=False) for shape in shapes]
    along, lines, column, line = list[Shape](), list[Tensor](), 0, 0
    of_length: dict[int, list[int]] = {}
    for i, m in enumerate(matrices):
        if m.start > column:
            along.append(Shape(1, m.start - column, columns=False))
            line += 1
        along.append(Shape(m.a, m.b, columns=not m.is_tall))
        lines.append(torch.arange(line, line + m.long))
        column, line = m.stop, line + m.long
        of_length.setdefault(m.short, []).append(i)
    if n > column:
        along.append(Shape(1, n - column, columns=False))
    short = torch.tensor([m.short for m in matrices for _ in range(m.long)], dtype=torch.float64, device=device)
    return RowPlan(
        others_of(matrices, n),
        kernels.matrices_of(tuple(along), device),
        torch.cat([torch.arange(0), *lines]).to(device),
        short,
        tuple(map(tuple, of_length.values())),
    )


@functools.lru_cache(maxsize=1024)
def matrices_of(
    segments: tuple[Segment, ...], rank: int, share: float, lines: float, scaled: bool
) -> tuple[Matrix, ...]:
    """The matrices in rows of these segments that are worth factors, with a share of whole ``lines``.

    Their rank is ``rank``, but at most a ``share`` of a matrix's shorter side, and at least 1.
    """
    matrices = []
    for s in segments:
        b = math.prod(s.shape[1:])
        a = (s.stop - s.start) // max(1, b)
        r = min(rank, max(1, math.floor(share * min(a, b))))
        if len(s.shape) > 1 and a * b >= WORTH_FACTORS * r * (a + b) > 0:
            matrices.append(Matrix(s.start, a, b, r, round(lines * max(a, b)), scaled))
    return tuple(matrices)


def others_of(matrices: Sequence[Matrix], n: int) -> Ranges:
    """The columns of rows of ``n`` between the matrices'."""
    return other_columns([(m.start, m.stop) for m in matrices], n)
