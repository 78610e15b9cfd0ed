"""Matrices by way of their owners: each rank works on some of a unit's matrices, for all.

Rows go to the owner of their matrix, which puts them together, works on it, and sends everyone its rows of what was
made. That is 2 / W of what an all-gather sends, and a W-th of the work; but it takes two rounds instead of one, and a
method that rounds does so twice.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from comm_compress.core.compressor import Codec, Compressor
from comm_compress.core.encoded import Encoded, RaggedRow
from comm_compress.core.loads import least_loaded
from comm_compress.core.rounds import Exchange, ExchangeParts, Request
from comm_compress.core.segments import flatten, rows_of_rank, unflatten
from comm_compress.core.state import State
from comm_compress.integrations.optim.gathers import Work, built
from comm_compress.integrations.optim.matrices import SENT, Unit
from comm_compress.registry import AnyMethod

How = Literal["auto", "all_gather", "owners"]
"""Everyone's rows to all others, or by way of each matrix's owner; "auto": as fewer bytes give the same numbers."""
ROUNDS = 2


def check(method: AnyMethod | None, exchange: How = "auto") -> None:
    """ValueError, which begins with the argument's name, when ``method`` cannot carry what an optimizer needs so."""
    check_how(exchange, built(method))


def check_how(exchange: How, method: Compressor) -> None:
    """ValueError for an exchange that there is not, or not with ``method``."""
    if exchange not in get_args(How):
        raise ValueError(f'exchange = {exchange!r}: must be "auto", "all_gather" or "owners"')
    if exchange == "owners" and not _fits(method):
        raise ValueError(
            f'exchange = "owners": {method.name} with these settings does not send rows of a size that all ranks know, '
            'each decoded from nothing but itself; use exchange="all_gather"'
        )


def is_by_owners(exchange: How, method: Compressor, world: int) -> bool:
    """Do ``world`` ranks exchange a unit's rows so?"""
    if exchange == "auto":
        return world > ROUNDS and _fits(method) and method.traits.lossless
    return exchange == "owners" and world > 1


def _fits(method: Compressor) -> bool:
    return isinstance(method, Codec) and method.fixed_size


class Owned(NamedTuple):
    """A unit whose matrices are divided among ``world`` owners: the numbers of each one's matrices."""

    unit: Unit
    numbers: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, unit: Unit) -> Owned:
        """Give each matrix to a rank (`least_loaded`)."""
        owners = least_loaded([matrix.shape[0] * matrix.shape[1] for matrix in unit.matrices], [0] * unit.world)
        return cls(unit, tuple(tuple(i for i, owner in enumerate(owners) if owner == d) for d in range(unit.world)))

    def part(self, owner: int) -> Unit:
        """The unit's matrices that rank ``owner`` orthogonalises for all ranks."""
        return self.unit._replace(matrices=tuple(self.unit.matrices[i] for i in self.numbers[owner]))

    def elements(self, rank: int) -> int:
        """How many elements ``rank`` sends in both rounds, padding included."""
        there = sum(self.part(owner).width for owner in range(self.unit.world) if owner != rank)
        return there + (self.unit.world - 1) * self.part(rank).width

    def there(self, updates: Sequence[Tensor], codec: Codec, state: State) -> Generator[Request, Any, Tensor]:
        """The round that brings rows to their owners; returns all ranks' rows ``[W, n]`` of the matrices owned here."""
        messages = []
        for owner, numbers in enumerate(self.numbers):
            part = self.part(owner)
            row = part.row([updates[i] for i in numbers], torch.empty(part.width, dtype=SENT, device=updates[0].device))
            messages.append(codec.encode(row.unsqueeze(0), state.child(f"to{owner}", part.segments)))
        received = yield ExchangeParts(tuple(messages))
        return codec.decode(received)

    def made(self, rows: Tensor, rank: int, work: Work) -> Tensor:
        """Do the work of ``rank``, on the matrices that ``rows`` ``[W, n]`` are; the rows of what was made, as they."""
        segments = self.part(rank).segments
        whole = [work(matrix.to(SENT)) for matrix in unflatten(rows, segments)]
        return flatten(whole, self.unit.world) if whole else rows.to(SENT)

    def back(self, made: Tensor, rank: int, codec: Codec, state: State) -> Generator[Request, Any, list[Tensor]]:
        """The round that brings rows back: row d of ``made`` to rank d. Returns this rank's rows of every matrix."""
        encoded = codec.encode(made, state.child("back", self.part(rank).segments))
        rows = [RaggedRow([encoded.row(d)], encoded.byte_count(d)) for d in range(self.unit.world)]
        received = yield Exchange(Encoded.ragged(rows, made.shape[1], state.scratch))
        parts: dict[int, Tensor] = {}
        for owner, numbers in enumerate(self.numbers):
            part = self.part(owner)
            if not numbers:
                continue
            bytes_ = received.row(owner).clone().unsqueeze(0)  # aligned, and its own
            values = codec.decode(Encoded(bytes_, codec.layout(part.width, SENT), part.width))[0]
            for i, segment in zip(numbers, part.segments, strict=True):
                rows_here = rows_of_rank(segment.shape[0], rank, self.unit.world)
                mine = values[segment.start : segment.stop].view(-1, segment.shape[1])
                parts[i] = mine[: rows_here.stop - rows_here.start]
        return [parts[i] for i in range(len(self.unit.matrices))]
