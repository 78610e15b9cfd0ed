"""The discrete cosine transform of chunks, and how a row of parameters is cut into chunks."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from comm_compress.core.segments import Segment


class Chunks(NamedTuple):
    """A parameter in a row: an ``[a, b]`` matrix from column ``start`` on, in chunks ``[high, wide]`` that divide it.

    A vector is a matrix of one row.
    """

    start: int
    a: int
    b: int
    high: int
    wide: int

    @property
    def stop(self) -> int:
        """The column of the row that follows the last chunk."""
        return self.start + self.a * self.b

    @property
    def size(self) -> int:
        """How many elements, and coefficients, a chunk has."""
        return self.high * self.wide

    @property
    def number(self) -> int:
        """How many chunks the parameter is divided into."""
        return self.a * self.b // self.size

    def coefficients(self, rows: Tensor) -> Tensor:
        """Transform these columns of float32 ``rows`` ``[R, n]``: chunk by chunk, ``[R, number, size]``."""
        tiles = rows[:, self.start : self.stop].reshape(
            -1, self.a // self.high, self.high, self.b // self.wide, self.wide
        )
        tiles = tiles.transpose(2, 3)  # [R, y, x, high, wide]
        made = basis(self.high, rows.device) @ tiles @ basis(self.wide, rows.device).T
        return made.reshape(rows.shape[0], self.number, self.size)

    def elements(self, coefficients: Tensor) -> Tensor:
        """Transform ``[R, number, size]`` back: the parameter's columns, float32 ``[R, a * b]``."""
        tiles = coefficients.view(-1, self.a // self.high, self.b // self.wide, self.high, self.wide)
        device = coefficients.device
        made = basis(self.high, device).T @ tiles @ basis(self.wide, device)
        return made.transpose(2, 3).reshape(coefficients.shape[0], self.a * self.b)


@functools.lru_cache(maxsize=1024)  # units times directions
def chunks_of(n: int, segments: tuple[Segment, ...], longest: int) -> tuple[Chunks, ...]:
    """Return the chunks of every parameter in rows of ``n`` elements, of at most ``longest`` elements each way.

    A chunk's sides are the largest divisors of the parameter's that are no longer, so that all its chunks are alike.
    A parameter of more than two dimensions is a matrix of shape[0] rows; where no parameters are known, the whole row
    is one vector.
    """
    shapes = [(s.start, s.stop, math.prod(s.shape[1:]) if len(s.shape) > 1 else s.stop - s.start) for s in segments]
    chunks = []
    for start, stop, b in shapes or [(0, n, n)]:
        if stop > start:
            a = (stop - start) // b
            chunks.append(Chunks(start, a, b, largest_divisor(a, longest), largest_divisor(b, longest)))
    return tuple(chunks)


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of ``number``, 1 or more, that is at most ``most``."""
    return next(d for d in range(min(number, most), 0, -1) if number % d == 0)


@functools.lru_cache(maxsize=256)
def basis(size: int, device: torch.device) -> Tensor:
    """Return the orthonormal DCT-II as a matrix, float32 ``[size, size]``: row k is the cosine of frequency k.

    Computed in float64, so that it is the same everywhere; its transpose is its inverse.
    """
    frequency = torch.arange(size, dtype=torch.float64).unsqueeze(1)
    place = torch.arange(size, dtype=torch.float64) + 0.5
    waves = torch.cos(math.pi / size * frequency * place) * math.sqrt(2 / size)
    waves[0] = math.sqrt(1 / size)
    return waves.float().to(device)
