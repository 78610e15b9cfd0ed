"""Which part of a whole parameter a rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """The slices ``parts`` of dimension ``dim`` of a whole parameter, one behind the other."""

    dim: int
    parts: tuple[range, ...]

    @property
    def size(self) -> int:
        """How many slices of the dimension these are."""
        return sum(len(part) for part in self.parts)

    def take(self, whole: Any) -> Tensor:
        """The piece of ``whole``: a tensor, or a file's slice that reads only what it is indexed for."""
        before = (slice(None),) * self.dim
        return torch.cat([whole[(*before, slice(part.start, part.stop))] for part in self.parts], self.dim)


def rows(part: range) -> Piece:
    """A part of the first dimension."""
    return Piece(0, (part,))


def side_by_side(part: range, total: int, count: int, dim: int = 0) -> Piece:
    """The same ``part`` of each of ``count`` matrices of ``total`` slices that are kept as one (GPT-2's q, k and v)."""
    return Piece(dim, tuple(range(part.start + i * total, part.stop + i * total) for i in range(count)))


def scaled(part: range, factor: int) -> range:
    """A range of heads, say, as that of their features."""
    return range(part.start * factor, part.stop * factor)
