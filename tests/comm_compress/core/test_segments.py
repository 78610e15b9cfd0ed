"""FSDP2's layout of a unit by hand: five rows of two over three ranks, and a vector of four."""

from __future__ import annotations

import torch

from comm_compress.core.segments import (
    Segment,
    flatten,
    moved_together,
    other_columns,
    put_columns,
    ranges_within,
    rows_of_rank,
    segments_of,
    take_columns,
    unflatten,
)

SHAPES: list[tuple[str, tuple[int, ...]]] = [("weight", (5, 2)), ("bias", (4,))]
WEIGHT, BIAS = torch.arange(1.0, 11).view(5, 2), torch.arange(11.0, 15)
ROWS = [[1, 2, 3, 4, 11, 12], [5, 6, 7, 8, 13, 14], [9, 10, 0, 0, 0, 0]]


def test_rows_of_ranks_are_a_partition() -> None:
    for rows in range(9):
        for world in range(1, 6):
            parts = [rows_of_rank(rows, rank, world) for rank in range(world)]
            assert [i for part in parts for i in range(part.start, part.stop)] == list(range(rows))


def test_where_each_parameter_lies() -> None:
    assert segments_of(SHAPES, 3) == (Segment("weight", (5, 2), 0, 4), Segment("bias", (4,), 4, 6))
    assert segments_of(SHAPES, 1) == (Segment("weight", (5, 2), 0, 10), Segment("bias", (4,), 10, 14))


def test_rows_hold_the_ranks_chunks_with_zeros_at_the_end() -> None:
    assert flatten([WEIGHT, BIAS], 3).tolist() == ROWS


def test_unflatten_takes_the_padding_off() -> None:
    weight, bias = unflatten(torch.tensor(ROWS, dtype=torch.float32), segments_of(SHAPES, 3))
    assert torch.equal(weight, WEIGHT)
    assert torch.equal(bias, BIAS)


def test_columns_go_back_to_where_they_were_taken_from() -> None:
    rows = torch.tensor(ROWS)
    ranges = [(0, 1), (3, 6)]
    columns = take_columns(rows, ranges)
    assert columns.tolist() == [[1, 4, 11, 12], [5, 8, 13, 14], [9, 0, 0, 0]]
    out = torch.zeros_like(rows)
    put_columns(columns, ranges, out)
    assert out.tolist() == [[1, 0, 0, 4, 11, 12], [5, 0, 0, 8, 13, 14], [9, 0, 0, 0, 0, 0]]
    assert take_columns(rows, []).shape == (3, 0)


def test_parameters_moved_side_by_side() -> None:
    apart = [Segment("a", (2,), 3, 5), Segment("b", (3,), 8, 11)]
    assert moved_together(apart) == (Segment("a", (2,), 0, 2), Segment("b", (3,), 2, 5))


def test_the_columns_between_others() -> None:
    assert other_columns([(6, 8), (1, 3)], 10) == [(0, 1), (3, 6), (8, 10)]
    assert other_columns([(0, 4), (4, 10)], 10) == []
    assert other_columns([], 3) == [(0, 3)]


def test_ranges_of_columns_that_were_taken_are_found_in_the_rows_they_came_from() -> None:
    outer = [(2, 5), (7, 9), (10, 14)]  # taken: 2 3 4 | 7 8 | 10 11 12 13
    for ranges in ([(0, 3)], [(1, 4)], [(2, 7)], [(0, 1), (4, 9)], [(3, 3)]):
        places = take_columns(torch.arange(20)[None], outer)
        assert torch.equal(
            take_columns(torch.arange(20)[None], ranges_within(ranges, outer)), take_columns(places, ranges)
        )
    assert ranges_within([(1, 4)], outer) == [(3, 5), (7, 8)]
