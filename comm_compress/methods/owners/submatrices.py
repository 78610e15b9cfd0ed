"""A unit's parameters cut into submatrices, about one for each rank, and who owns which."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from comm_compress.core.loads import least_loaded
from comm_compress.core.segments import Segment, rows_of_rank, unflatten


class Submatrix(NamedTuple):
    """Rows ``top`` to ``bottom`` and columns ``left`` to ``right`` of a unit's parameter of this number.

    A parameter counts as a matrix of shape[0] rows; a vector is one of a single column.
    """

    parameter: int
    top: int
    bottom: int
    left: int
    right: int

    @property
    def height(self) -> int:
        """How many rows it has."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """How many columns it has."""
        return self.right - self.left

    def of(self, matrices: Sequence[Tensor]) -> Tensor:
        """Return it as a view of a unit's parameters, which are matrices: ``[height, width]``."""
        return matrices[self.parameter][self.top : self.bottom, self.left : self.right]


class Share(NamedTuple):
    """The rows of a submatrix that lie in one rank's shard: elements ``start`` to ``stop`` of the owner's row.

    ``segment``: the parameter in a shard's row; ``part``: what the shard has, rows counted from the shard's first.
    """

    start: int
    stop: int
    segment: Segment
    part: Submatrix

    def of_shard(self, row: Tensor) -> Tensor:
        """Return the elements in a shard's ``row`` ``[n]``, as a view ``[rows, columns]``."""
        chunk = row[self.segment.start : self.segment.stop].view(-1, _columns(self.segment))
        return chunk[self.part.top : self.part.bottom, self.part.left : self.part.right]


class Division:
    """Who owns what of a unit, about equally; every rank finds the same. `divided` makes and keeps it.

    Matrices are cut into about as many submatrices together as there are ranks, and these are as near to squares as
    their number allows: of all submatrices with so many elements, a square has the thinnest factors. Vectors stay
    whole. The largest goes first, always to the rank that has the fewest elements so far.

    An owner's row ``[size]`` has its submatrices one after another. ``parameters``: of the unit. ``owned``: their
    submatrices, by owner; ``segments``: the same as parameters of the owner's row.
    """

    def __init__(self, parameters: tuple[Segment, ...], world: int) -> None:
        self.parameters, self.world = parameters, world
        pieces = _numbers_of_pieces([math.prod(s.shape) * (len(s.shape) > 1) for s in parameters], world)
        cut = [s for number, whole in enumerate(parameters) for s in _cut(number, whole.shape, pieces[number])]
        found = sorted(cut, key=lambda s: -s.height * s.width)
        owners = least_loaded([s.height * s.width for s in found], [0] * world)
        self.owned = [[s for s, o in zip(found, owners, strict=True) if o == owner] for owner in range(world)]
        self.segments = [_segments(submatrices, parameters, world) for submatrices in self.owned]
        self._shares: dict[tuple[int, int], tuple[Share, ...]] = {}

    def size(self, owner: int) -> int:
        """How many elements rank ``owner`` sums; 0 when there are fewer submatrices than ranks."""
        return self.segments[owner][-1].stop if self.segments[owner] else 0

    @functools.cached_property
    def alike(self) -> list[tuple[int, ...]]:
        """The owners of something, those together whose submatrices have the same shapes in the same order."""
        return _groups(tuple(s.shape for s in segments) for segments in self.segments)

    def shares(self, owner: int, rank: int) -> tuple[Share, ...]:
        """What the shard of ``rank`` has of the row of ``owner``. A rank asks of itself, as one and as the other."""
        key = (owner, rank)
        if key not in self._shares:
            submatrices = zip(self.owned[owner], self.segments[owner], strict=True)
            self._shares[key] = tuple(_shares(submatrices, self.parameters, self.world, rank))
        return self._shares[key]

    @functools.cached_property
    def without_elements(self) -> frozenset[int]:
        """The ranks whose shards are nothing but padding."""
        shapes = [s.shape for s in self.parameters if math.prod(s.shape)]
        rows = {rank: [rows_of_rank(shape[0], rank, self.world) for shape in shapes] for rank in range(self.world)}
        return frozenset(rank for rank, there in rows.items() if all(r.start == r.stop for r in there))

    def elements(self, owner: int, rank: int) -> int:
        """How many elements ``owner`` sends back to ``rank``.

        A rank without elements is sent one by rank 0, to know by it whether sums are finite.
        """
        if owner == 0 and rank in self.without_elements:
            return min(1, self.size(0))
        return sum(share.stop - share.start for share in self.shares(owner, rank))

    def owed(self, owner: int) -> list[tuple[int, ...]]:
        """The ranks that ``owner`` sends something back, those together who get as many elements."""
        return _groups(self.elements(owner, rank) for rank in range(self.world))

    def matrices(self, rows: Tensor) -> list[Tensor]:
        """The unit's parameters, put together from the ranks' rows ``[W, n]``: float32 matrices, to be read only."""
        whole = zip(unflatten(rows, self.parameters), self.parameters, strict=True)
        return [tensor.float().reshape(s.shape[0], _columns(s)) for tensor, s in whole]

    def zeros(self, device: torch.device) -> list[Tensor]:
        """The unit's parameters as float32 matrices of zeros."""
        return [torch.zeros(s.shape[0], _columns(s), device=device) for s in self.parameters]

    def row(self, matrices: Sequence[Tensor], owner: int) -> Tensor:
        """Return what rank ``owner`` owns of the parameters: ``[size]``."""
        return torch.cat([s.of(matrices).flatten() for s in self.owned[owner]])

    def add(self, row: Tensor, owner: int, matrices: Sequence[Tensor]) -> None:
        """Add an owner's row ``[size]`` to the parameters in its places."""
        for s, segment in zip(self.owned[owner], self.segments[owner], strict=True):
            s.of(matrices).add_(row[segment.start : segment.stop].view(s.height, s.width))


divided = functools.lru_cache(maxsize=1024)(Division)  # units, which are divided once


def _groups(kinds: Iterable[Hashable]) -> list[tuple[int, ...]]:
    """The numbers of things of a kind together; things of an empty kind (0, ()) are in no group."""
    groups: dict[Hashable, list[int]] = {}
    for number, kind in enumerate(kinds):
        if kind:
            groups.setdefault(kind, []).append(number)
    return [tuple(numbers) for numbers in groups.values()]


def _columns(parameter: Segment) -> int:
    return math.prod(parameter.shape[1:])


def _numbers_of_pieces(sizes: list[int], pieces: int) -> list[int]:
    """Cut things of these sizes into so many pieces together, so that the largest is small; each has at least one.

    Those of less than half a piece's size lie beside other pieces, and do not count.
    """
    numbers, half = [1] * len(sizes), sum(sizes) / pieces / 2
    for _ in range(pieces - sum(size >= half > 0 for size in sizes)):
        largest = max(range(len(sizes)), key=lambda i: sizes[i] / numbers[i], default=None)
        if largest is not None and sizes[largest] > numbers[largest]:
            numbers[largest] += 1
    return numbers


def _cut(number: int, shape: tuple[int, ...], pieces: int) -> Iterator[Submatrix]:
    """Cut parameter ``number`` into so many submatrices; into one where it has too few rows and columns for that."""
    a, b = shape[0], math.prod(shape[1:])
    if not a * b:
        return
    grids = [(k, pieces // k) for k in range(1, pieces + 1) if pieces % k == 0 and k <= a and pieces // k <= b]
    down, across = min(grids, key=lambda grid: grid[0] / a + grid[1] / b, default=(1, 1))
    for i, j in itertools.product(range(down), range(across)):
        yield Submatrix(number, i * a // down, (i + 1) * a // down, j * b // across, (j + 1) * b // across)


def _segments(submatrices: list[Submatrix], parameters: tuple[Segment, ...], world: int) -> tuple[Segment, ...]:
    """The submatrices as parameters of their owner's row, in which they lie one after another.

    A segment's parameter has a W-th of its rows in each row: here as many rows as the ranks' submatrices together.
    """
    segments, start = list[Segment](), 0
    for s in submatrices:
        whole = parameters[s.parameter]
        name = f"{whole.name}[{s.top}:{s.bottom}, {s.left}:{s.right}]"
        shape = (world * s.height, s.width) if len(whole.shape) > 1 else (world * s.height,)
        segments.append(Segment(name, shape, start, start + s.height * s.width))
        start = segments[-1].stop
    return tuple(segments)


def _shares(
    submatrices: Iterator[tuple[Submatrix, Segment]], parameters: tuple[Segment, ...], world: int, rank: int
) -> Iterator[Share]:
    """What rank's shard has of these submatrices, which lie in their owner's row as the segments say."""
    for s, segment in submatrices:
        whole = parameters[s.parameter]
        rows = rows_of_rank(whole.shape[0], rank, world)
        top, bottom = max(s.top, rows.start), min(s.bottom, rows.stop)
        if top < bottom:
            start = segment.start + (top - s.top) * s.width
            part = s._replace(top=top - rows.start, bottom=bottom - rows.start)
            yield Share(start, start + part.height * part.width, whole, part)
