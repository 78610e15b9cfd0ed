"""Different methods for different parameters of one unit."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress.compressor import Compressor
from comm_compress.rounds import AllGatherRounds, Reduced, ReduceScatterRounds
from comm_compress.segments import Segment
from comm_compress.state import State


class _Part(NamedTuple):
    """The columns that one method carries, as spans, and the segments as they lie in them."""

    label: str
    method: Compressor
    spans: list[tuple[int, int]]
    segments: tuple[Segment, ...]

    def take(self, rows: Tensor) -> Tensor:
        return torch.cat([rows[..., a:b] for a, b in self.spans], -1)

    def put(self, columns: Tensor, out: Tensor) -> None:
        start = 0
        for a, b in self.spans:
            out[..., a:b] = columns[..., start : start + b - a]
            start += b - a


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

    needs_segments = True

    def __init__(self, layers: Mapping[str, Compressor], rest: Compressor) -> None:
        self.layers, self.rest = dict(layers), rest
        everyone = [*self.layers.values(), rest]
        self.for_gradients = all(c.for_gradients for c in everyone)
        self.for_parameters = all(c.for_parameters for c in everyone)
        self.lossless, self.unbiased = all(c.lossless for c in everyone), all(c.unbiased for c in everyone)
        self.additive = all(c.additive for c in everyone)
        limits = [c.max_ranks for c in everyone if c.max_ranks is not None]
        self.max_ranks = min(limits, default=None)
        self.name = rest.name
        self.settings = {
            **rest.settings,
            "layers": {pattern: {"method": c.name, **c.settings} for pattern, c in self.layers.items()},
        }

    def _parts(self, n: int, segments: Sequence[Segment]) -> list[_Part]:
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
                part.take(rows), state.child(part.label, part.segments)
            )
            part.put(reduced.total, total)
            sent.append((part, reduced.sent))
        return Reduced(total, _Sent(rows.shape, rows.device, sent))

    def contribution(self, sent: _Sent) -> Tensor:
        """The parts' contributions in their places."""
        out = torch.zeros(sent.shape, device=sent.device)
        for part, message in sent.parts:
            part.put(part.method.contribution(message), out)
        return out

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """Part after part."""
        out = row.new_empty((state.world, row.numel()))
        for part in self._parts(row.numel(), state.segments):
            gathered = yield from part.method.all_gather(part.take(row), state.child(part.label, part.segments))
            part.put(gathered, out)
        return out
