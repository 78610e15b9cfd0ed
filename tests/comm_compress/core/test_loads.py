"""Who gets what: by hand, and never far from equal shares."""

from __future__ import annotations

from hypothesis import given, strategies as st

from comm_compress.core.loads import least_loaded


def test_the_largest_goes_first_to_whoever_has_least() -> None:
    assert least_loaded([1, 5, 3, 3], [0, 0]) == [0, 0, 1, 1]
    assert least_loaded([2, 2, 2], [3, 0, 0]) == [1, 2, 1]
    assert least_loaded([], [0]) == []


@given(sizes=st.lists(st.integers(1, 100), max_size=30), ranks=st.integers(1, 6))
def test_nobody_has_more_than_an_equal_share_and_one_thing(sizes: list[int], ranks: int) -> None:
    loads = [0] * ranks
    for size, rank in zip(sizes, least_loaded(sizes, [0] * ranks), strict=True):
        loads[rank] += size
    assert max(loads) <= sum(sizes) / ranks + max(sizes, default=0)
