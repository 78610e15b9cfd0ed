"""Different methods for different parameters of one unit."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress.compressor import Compressor, claim_as
from comm_compress.rounds import AllGatherRounds, Reduced, ReduceScatterRounds
from comm_compress.segments import Segment, Spans, put_columns, take_columns
from comm_compress.state import State


class _Part(NamedTuple):
    """The columns that one method carries, as spans, and the segments as they lie in them."""

    label: str
    method: Compressor
    spans: Spans
    segments: tuple[Segment, ...]


class _Sent(NamedTuple):
    shape: torch.Size
    device: torch.device
    parts: list[tuple[_Part, Any]]


class ByLayer(Compressor):
    """Each parameter goes by the method of the first pattern that its name matches, or else by ``rest``.

    Patterns are those of `fnmatch` over full parameter names ("*wte*", "transformer.h.*.mlp.*"). Within a unit
    the methods run one after another, each over its parameters' columns side by side: one exchange (or
    more) for every method that occurs in the unit.
    """

    def __init__(self, layers: Mapping[str, Compressor], rest: Compressor) -> None:
        self.layers, self.rest = dict(layers), rest
        self._parts = functools.cache(self._find_parts)  # the same few rows at every step
        claim_as(self, rest, *self.layers.values())
        self.needs_segments = True
        self.settings = {
            **rest.settings,
            "layers": {pattern: {"method": c.name, **c.settings} for pattern, c in self.layers.items()},
        }

    def _find_parts(self, n: int, segments: tuple[Segment, ...]) -> list[_Part]:
        """The methods that occur in a unit with rows of ``n``, in the patterns' order."""
        if n and not segments:
            raise ValueError(f"{self.name}: layers needs to know which parameter lies where (State.segments)")
        columns: dict[str, list[Segment]] = {}
        for segment in segments:
            pattern = next((p for p in self.layers if fnmatch.fnmatchcase(segment.name, p)), "")
            columns.setdefault(pattern, []).append(segment)
        parts = []
        for pattern in [*self.layers, ""]:
            if chosen := columns.get(pattern):
                moved, start = [], 0
                for s in chosen:
                    moved.append(Segment(s.name, s.shape, start, start + s.stop - s.start))
                    start = moved[-1].stop
                spans = [(s.start, s.stop) for s in chosen]
                parts.append(_Part(f"layers:{pattern}", self.layers.get(pattern, self.rest), spans, tuple(moved)))
        return parts

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Part after part."""
        total = rows.new_zeros(rows.shape[1], dtype=torch.float32)
        sent = []
        for part in self._parts(rows.shape[1], state.segments):
            reduced: Reduced = yield from part.method.reduce_scatter(
                take_columns(rows, part.spans), state.child(part.label, part.segments)
            )
            put_columns(reduced.total, part.spans, total)
            sent.append((part, reduced.sent))
        return Reduced(total, _Sent(rows.shape, rows.device, sent))

    def contribution(self, sent: _Sent) -> Tensor:
        """The parts' contributions in their places."""
        out = torch.zeros(sent.shape, device=sent.device)
        for part, message in sent.parts:
            put_columns(part.method.contribution(message), part.spans, out)
        return out

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """Part after part."""
        out = row.new_empty((state.world, row.numel()))
        for part in self._parts(row.numel(), state.segments):
            columns, child = take_columns(row, part.spans), state.child(part.label, part.segments)
            if state.master is not None:
                child.master = partial(_columns_of, state.master, part.spans)
            gathered = yield from part.method.all_gather(columns, child)
            put_columns(gathered, part.spans, out)
        return out


def _columns_of(master: Callable[[], Tensor], spans: Spans) -> Tensor:
    return take_columns(master(), spans)
