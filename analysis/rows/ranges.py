"""Lists of numbers as short texts."""

from __future__ import annotations

from collections.abc import Iterable


def spans(numbers: Iterable[int]) -> list[str]:
    """Rising numbers as texts, neighbours as ranges: ``["1, 2", "7 to 30"]``."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in ranges]
