"""Which parameter lies where in a unit's flat gradient: for methods that need matrices or names."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Ranges = Sequence[tuple[int, int]]
"""Ranges of columns: first, and one past the last."""


class Segment(NamedTuple):
    """One parameter of an FSDP unit: columns ``start`` to ``stop`` of every row.

    FSDP2 shards dim 0: with ``chunk = ceil(shape[0] / W)``, columns of row d hold the parameter's slices
    ``d * chunk`` to ``(d + 1) * chunk``, the last ones padded with zeros.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


def segments_of(shapes: Sequence[tuple[str, tuple[int, ...]]], world: int) -> tuple[Segment, ...]:
    """The segments of a unit that holds these (name, shape) in this order, sharded over ``world`` ranks."""
    return _segments_of(tuple((name, tuple(shape)) for name, shape in shapes), world)


@functools.lru_cache(maxsize=1024)  # hooks ask before every collective
def _segments_of(shapes: tuple[tuple[str, tuple[int, ...]], ...], world: int) -> tuple[Segment, ...]:
    segments, start = [], 0
    for name, shape in shapes:
        width = math.ceil(shape[0] / world) * math.prod(shape[1:])
        segments.append(Segment(name, shape, start, start + width))
        start += width
    return tuple(segments)


def rows_of_rank(rows: int, rank: int, world: int) -> slice:
    """Return the rows of dim 0 that FSDP2 gives a rank: ceil(rows / W) each; the last ranks have fewer, or none."""
    each = math.ceil(rows / world)
    return slice(min(rank * each, rows), min((rank + 1) * each, rows))


def moved_together(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return the segments of these parameters when only their columns are taken, side by side from column 0."""
    moved, start = [], 0
    for s in segments:
        moved.append(Segment(s.name, s.shape, start, start + s.stop - s.start))
        start = moved[-1].stop
    return tuple(moved)


def flatten(tensors: Sequence[Tensor], world: int) -> Tensor:
    """Lay full tensors out as FSDP2 does for a reduce-scatter: ``[W, n]``, row d the dim-0 chunks of rank d."""
    parts = []
    for tensor in tensors:
        chunk = math.ceil(tensor.shape[0] / world)
        padded = tensor.new_zeros((chunk * world, *tensor.shape[1:]))
        padded[: tensor.shape[0]] = tensor
        parts.append(padded.view(world, -1))
    return torch.cat(parts, 1)


def unflatten(rows: Tensor, segments: Sequence[Segment]) -> list[Tensor]:
    """Return the full tensors from ``[W, n]``, padding dropped: the inverse of `flatten`."""
    return [rows[:, s.start : s.stop].reshape(-1, *s.shape[1:])[: s.shape[0]] for s in segments]


def other_columns(ranges: Ranges, n: int) -> Ranges:
    """Return the columns of rows of ``n`` that lie between ``ranges``, which do not overlap."""
    edges = [0, *(edge for pair in sorted(ranges) for edge in pair), n]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


def ranges_within(ranges: Ranges, outer: Ranges) -> Ranges:
    """Return where ``ranges`` of the columns of ``outer`` lie in the rows that ``outer`` was taken from."""
    within, start = [], 0
    for a, b in outer:
        for first, last in ranges:
            low, high = max(first, start), min(last, start + b - a)
            if low < high:
                within.append((a + low - start, a + high - start))
        start += b - a
    return within


def take_columns(rows: Tensor, ranges: Ranges) -> Tensor:
    """Return the columns of ``ranges`` side by side, from the last dimension of ``rows``."""
    return torch.cat([rows[..., a:b] for a, b in ranges], -1) if ranges else rows[..., :0]


def put_columns(columns: Tensor, ranges: Ranges, out: Tensor) -> None:
    """Write ``columns``, which `take_columns` took, back to their places in ``out``."""
    start = 0
    for a, b in ranges:
        out[..., a:b] = columns[..., start : start + b - a]
        start += b - a
