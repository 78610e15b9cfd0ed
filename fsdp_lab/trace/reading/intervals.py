"""Sets of moments in time, as sorted disjoint half-open intervals of whole nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]  # from, up to but not including
Intervals = Sequence[Interval]  # sorted, disjoint, none empty, none touching the next: what every function returns


def union(*several: Iterable[Interval]) -> list[Interval]:
    """The moments in any of ``several``, whose intervals may overlap, come in any order, or be empty."""
    merged: list[Interval] = []
    for start, end in sorted(i for some in several for i in some if i[0] < i[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersection(a: Intervals, b: Intervals) -> list[Interval]:
    """The moments that are in ``a`` and in ``b``."""
    common: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            common.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common


def difference(a: Intervals, b: Intervals) -> list[Interval]:
    """The moments in ``a`` that are not in ``b``."""
    if not a:
        return []
    first, last = a[0][0], a[-1][1]
    gaps, at = [], first
    for start, end in b:
        if start > at:
            gaps.append((at, start))
        at = max(at, end)
    if at < last:
        gaps.append((at, last))
    return intersection(a, gaps)


def length(a: Intervals) -> int:
    """How many nanoseconds the intervals of ``a`` have together."""
    return sum(end - start for start, end in a)
