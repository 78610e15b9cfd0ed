"""A unit's parameters in several parts, each carried by itself: its own columns, state and rounds."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress.core.compressor import Compressor
from comm_compress.core.rounds import AllGatherRounds, Reduced, ReduceScatterRounds, Shared
from comm_compress.core.segments import Ranges, Segment, moved_together, put_columns, ranges_within, take_columns
from comm_compress.core.state import State
from comm_compress.core.traits import Traits


class Part(NamedTuple):
    """The columns that one method carries, as ranges, and the segments as they lie in them.

    ``label``: of the child state that belongs to it.
    """

    label: str
    method: Compressor
    ranges: Ranges
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, label: str, method: Compressor, chosen: Sequence[Segment]) -> Part:
        """Return the part of a row that holds the columns of ``chosen``."""
        return cls(label, method, [(s.start, s.stop) for s in chosen], moved_together(chosen))


class _Sent(NamedTuple):
    shape: torch.Size
    device: torch.device
    parts: list[tuple[Part, Any]]


class InParts(Compressor):
    """Cuts every row into parts and lets their methods run one after another, each over its columns side by side.

    So a unit takes one exchange (or more) for every part that occurs in it. What a part's method computes depends on
    nothing outside of its columns.
    """

    traits = Traits(needs_segments=True)

    def __init__(self) -> None:
        self._parts = functools.cache(self._find_parts)  # the same few rows at every step

    @abstractmethod
    def _find_parts(self, n: int, segments: tuple[Segment, ...]) -> list[Part]:
        """Return the parts of a unit with rows of ``n``; together they hold every segment once."""

    def _columns(self, part: Part, rows: Tensor, state: State) -> tuple[Tensor, State]:
        """Return a copy of the part's columns, and its state."""
        return take_columns(rows, part.ranges), state.child(part.label, part.segments)

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Run the parts' rounds one part after another, and put their totals side by side."""
        total = rows.new_zeros(rows.shape[1], dtype=torch.float32)
        sent, shared = [], []
        for part in self._parts(rows.shape[1], state.segments):
            reduced: Reduced = yield from part.method.reduce_scatter(*self._columns(part, rows, state))
            put_columns(reduced.total, part.ranges, total)
            sent.append((part, reduced.sent))
            if reduced.shared is not None:
                shared.append(Shared(ranges_within(reduced.shared.ranges, part.ranges), reduced.shared.totals))
        return Reduced(total, _Sent(rows.shape, rows.device, sent), _together(shared))

    def contribution(self, sent: _Sent) -> Tensor:
        """Put the parts' contributions into their columns."""
        out = torch.zeros(sent.shape, device=sent.device)
        for part, message in sent.parts:
            put_columns(part.method.contribution(message), part.ranges, out)
        return out

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """Run the parts' rounds one part after another, and put their rows side by side."""
        out = row.new_empty((state.world, row.numel()))
        for part in self._parts(row.numel(), state.segments):
            columns, child = take_columns(row, part.ranges), state.child(part.label, part.segments)
            if state.master is not None:
                child.master = partial(_columns_of, state.master, part.ranges)
            gathered = yield from part.method.all_gather(columns, child)
            put_columns(gathered, part.ranges, out)
        return out


def _together(shared: Sequence[Shared]) -> Shared | None:
    """Return what all parts' ranks know, as one; None when they know nothing."""
    if not shared:
        return None
    ranges = [pair for part in shared for pair in part.ranges]
    return Shared(ranges, lambda: torch.cat([part.totals() for part in shared], 1))


def _columns_of(master: Callable[[], Tensor], ranges: Ranges) -> Tensor:
    return take_columns(master(), ranges)
