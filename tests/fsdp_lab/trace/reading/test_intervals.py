"""Interval sets against the oracle of a bitmap: one bit a nanosecond."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from hypothesis import given, strategies as st

from fsdp_lab.trace.breakdown import Times, step_times
from fsdp_lab.trace.reading.activity import Activity, Busy, Step
from fsdp_lab.trace.reading.intervals import Interval, difference, intersection, length, union
from fsdp_lab.trace.reading.labels import CLASSES

END = 40
messy = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=8)


def bits(intervals: Iterable[Interval]) -> np.ndarray:
    found = np.zeros(END, dtype=bool)
    for start, end in intervals:
        found[start:end] = True
    return found


def is_canonical(intervals: list[Interval]) -> bool:
    flat = [moment for interval in intervals for moment in interval]
    return all(a < b for a, b in pairwise(flat))


@given(messy, messy)
def test_sets_are_what_a_bitmap_says(a: list[Interval], b: list[Interval]) -> None:
    x, y = union(a), union(b)
    cases = [
        (union(a, b), bits(a) | bits(b)),
        (intersection(x, y), bits(a) & bits(b)),
        (difference(x, y), bits(a) & ~bits(b)),
    ]
    for got, expected in cases:
        assert is_canonical(got)
        assert (bits(got) == expected).all()
        assert length(got) == expected.sum()


@given(st.lists(st.tuples(st.integers(0, END), st.integers(0, END), st.sampled_from(CLASSES)), max_size=12), messy)
def test_a_steps_times_are_those_of_a_bitmap_and_add_up(
    spans: list[tuple[int, int, str]], posted: list[Interval]
) -> None:
    """All fields against the bitmap, and the sums that `Times` promises; phases add up to the step."""
    busy = [Busy(start, end, kind, "lane") for start, end, kind in spans]  # type: ignore[arg-type]
    step = Step((5, 35), [("forward", (5, 12)), ("other", (12, 15)), ("backward", (15, 30)), ("optimizer", (30, 35))])
    (found,) = step_times(Activity("cpu", [step], busy, [], posted))
    window = bits([(5, 35)])
    p, c, k = (bits((a, b) for a, b, kind in spans if kind == one) & window for one in CLASSES)
    may = c | (bits(posted) & window)
    expected = Times(
        total=window.sum(),
        compute=p.sum(),
        communication=c.sum(),
        compression=k.sum(),
        communication_under_compute=(c & p).sum(),
        communication_under_compression=(c & k).sum(),
        compression_under_compute=(k & p).sum(),
        exposed_communication=(c & ~p).sum(),
        exposed_compression=(k & ~p).sum(),
        both_exposed=(c & k & ~p).sum(),
        idle=(window & ~p & ~c & ~k).sum(),
        communication_at_most=may.sum(),
        hidden_at_most=(may & p).sum(),
    )
    for name, nanoseconds in vars(expected).items():
        got = getattr(found.whole, name) * 1e6
        assert round(got) == nanoseconds, name
        assert round(sum(getattr(times, name) for times in found.phases.values()) * 1e6) == nanoseconds, name
    t = found.whole
    parts = t.compute + t.exposed_communication + t.exposed_compression - t.both_exposed + t.idle
    assert abs(t.total - parts) < 1e-9
