"""Replicas that are servers of one another: which replica keeps which parameters for all.

Papers have a server beside the workers. Here every replica is the server of about a W-th of all elements, so that no
link carries more than the others, and no memory holds everything twice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from torch import Tensor, nn

from comm_compress.core.loads import least_loaded
from comm_compress.core.segments import Segment, rows_of_rank
from comm_compress.integrations.replicas.fragments import Fragment, local

DIVIDED_FROM = 1 << 13
"""From so many elements on a parameter that need not be whole has every replica as the server of some of its rows."""


class Piece(NamedTuple):
    """A parameter, or some rows of it: elements ``start`` to ``stop`` of it, which replica ``server`` keeps."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    server: int

    @property
    def key(self) -> str:
        """The name under which states remember this piece."""
        return f"{self.name}:{self.start}"

    @property
    def numel(self) -> int:
        """How many elements the piece has."""
        return self.stop - self.start

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Where it lies in a row of its own."""
        return (Segment(self.name, self.shape or (1,), 0, self.numel),)

    def of(self, p: nn.Parameter) -> Tensor:
        """Return its elements, in its shape and in the parameter's own memory."""
        mine = local(p)
        if self.numel == mine.numel():
            return mine
        width = mine[0].numel()
        return mine[self.start // width : self.stop // width]


class Servers:
    """The pieces of all parameters of ``fragments``, by their servers, ``world`` replicas. ``whole``: names of
    parameters that are not divided."""

    def __init__(self, fragments: Collection[Fragment], whole: Collection[str], world: int) -> None:
        self._by_fragment = {
            fragment.name: _pieces(fragment.parameters, frozenset(whole), world) for fragment in fragments
        }
        self._world = world

    def of(self, fragment: Fragment) -> list[list[Piece]]:
        """Return each server's pieces of the parameters that ``fragment`` has now."""
        here = [piece for piece in self._by_fragment[fragment.name] if piece.name in fragment.parameters]
        return [[piece for piece in here if piece.server == server] for server in range(self._world)]


def _pieces(parameters: Mapping[str, nn.Parameter], whole: frozenset[str], world: int) -> list[Piece]:
    divided = {name: p for name, p in parameters.items() if name not in whole and p.numel() >= DIVIDED_FROM}
    pieces = [piece for name, p in divided.items() for piece in _rows(name, tuple(p.shape), world)]
    loads = [sum(piece.numel for piece in pieces if piece.server == server) for server in range(world)]
    others = {name: p for name, p in parameters.items() if name not in divided}
    servers = least_loaded([p.numel() for p in others.values()], loads)
    return pieces + [
        Piece(name, tuple(p.shape), 0, p.numel(), server)
        for (name, p), server in zip(others.items(), servers, strict=True)
    ]


def _rows(name: str, shape: tuple[int, ...], world: int) -> list[Piece]:
    """Return every server's rows of a parameter, as FSDP2 would divide them; a server may have none."""
    width, pieces = math.prod(shape[1:]), []
    for server in range(world):
        rows = rows_of_rank(shape[0], server, world)
        if rows.stop > rows.start:
            each = (rows.stop - rows.start, *shape[1:])
            pieces.append(Piece(name, each, rows.start * width, rows.stop * width, server))
    return pieces
