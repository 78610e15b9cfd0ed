"""Who owns what of a unit: every element once, about equally, in submatrices near to squares."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from comm_compress.core.segments import Segment, flatten, segments_of
from comm_compress.methods.owners.submatrices import divided

LAYER = [("qkv", (160, 480)), ("out", (160, 160)), ("up", (160, 640)), ("down", (640, 160)), ("norm", (160,))]
SHAPES = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple), min_size=1, max_size=5)


def unit(shapes: list[tuple[int, ...]], world: int) -> tuple[Segment, ...]:
    return segments_of([(f"p{i}", shape) for i, shape in enumerate(shapes)], world)


@given(shapes=SHAPES, world=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_every_element_has_one_owner_and_padding_none(shapes: list[tuple[int, ...]], world: int) -> None:
    segments = unit(shapes, world)
    division = divided(segments, world)
    times_owned = [torch.zeros(shape).reshape(shape[0], -1) for shape in shapes]
    for owner in range(world):
        division.add(torch.ones(division.size(owner)), owner, times_owned)
    assert all(torch.equal(counts, torch.ones_like(counts)) for counts in times_owned)


@given(shapes=SHAPES, world=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_every_element_of_a_shard_comes_from_one_owner(shapes: list[tuple[int, ...]], world: int) -> None:
    """What owners' rows hold for each shard is the shard, but for its padding."""
    segments = unit(shapes, world)
    division, start, matrices = divided(segments, world), 1.0, list[torch.Tensor]()
    for shape in shapes:  # all elements differ
        matrices.append(torch.arange(start, start + math.prod(shape)).view(shape[0], -1))
        start += math.prod(shape)
    shards = torch.zeros(world, segments[-1].stop)
    for owner in range(world):
        row = division.row(matrices, owner) if division.size(owner) else torch.empty(0)
        for rank in range(world):
            for share in division.shares(owner, rank):
                share.of_shard(shards[rank]).add_(row[share.start : share.stop].view(share.part.height, -1))
    assert torch.equal(shards, flatten(matrices, world))


def test_an_owners_row_has_its_submatrices_as_they_are() -> None:
    """Read by the segments of the row, they are the cuts of the matrix that the names say."""
    world, matrix = 4, torch.arange(12.0 * 8).view(12, 8)
    segments = unit([(12, 8)], world)
    division, matrices = divided(segments, world), divided(segments, world).matrices(flatten([matrix], world))
    for owner in range(world):
        row = division.row(matrices, owner)
        for s in division.segments[owner]:
            top, bottom, left, right = map(int, s.name.partition("[")[2].rstrip("]").replace(",", ":").split(":"))
            assert torch.equal(row[s.start : s.stop].view(6, 4), matrix[top:bottom, left:right])
        assert division.segments[owner] == segments_of([(s.name, s.shape) for s in division.segments[owner]], world)


EMBEDDINGS = [("tokens", (4096, 160)), ("positions", (128, 160)), ("norm", (160,))]


@pytest.mark.parametrize("shapes", [LAYER, EMBEDDINGS], ids=["layer", "embeddings"])
@pytest.mark.parametrize("world", [2, 3, 4, 8, 16, 32, 64])
def test_owners_are_about_equally_busy(shapes: list[tuple[str, tuple[int, ...]]], world: int) -> None:
    division = divided(segments_of(shapes, world), world)
    sizes = [division.size(owner) for owner in range(world)]
    assert max(sizes) <= 1.5 * sum(sizes) / world


@pytest.mark.parametrize("world", [4, 8, 16, 32, 64])
def test_factors_of_submatrices_are_thinner_than_those_of_slices(world: int) -> None:
    """Numbers of two factors of rank 1, over all that a rank sends: of submatrices, and of FSDP2's slices of rows."""
    segments = segments_of(LAYER, world)
    cut = [(s.height, s.width) for owned in divided(segments, world).owned for s in owned if s.width > 1]
    slices = [(math.ceil(a / world), b) for name, (a, *rest) in LAYER if name != "norm" for b in rest] * world
    # of a square of n elements a factor has sqrt(n), of a slice of it sqrt(n) / W and sqrt(n)
    assert sum(h + w for h, w in cut) < sum(h + w for h, w in slices) / math.sqrt(world) * 1.6
