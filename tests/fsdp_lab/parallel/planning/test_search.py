"""What the search finds is the least there is."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from fsdp_lab.parallel.planning import search
from fsdp_lab.parallel.planning.search import Shares, compositions, least, num_compositions, reduced


def every(total: int, parts: int) -> list[Shares]:
    """All divisions, found without the code under test."""
    return [x for x in itertools.product(range(1, total + 1), repeat=parts) if sum(x) == total]


def test_compositions_are_all_there() -> None:
    for total, parts in itertools.product(range(1, 9), range(1, 5)):
        assert sorted(compositions(total, parts)) == every(total, parts)
        assert num_compositions(total, parts) == len(every(total, parts))


def slowest(generator: random.Random, parts: int) -> search.Cost:
    """Seconds of the slowest of ranks with random speeds, fixed times, and a term for the largest share."""
    fixed = [generator.random() for _ in range(parts)]
    slope = [generator.random() + 0.05 for _ in range(parts)]
    link = generator.random()
    return lambda s: max(f + k * x for f, k, x in zip(fixed, slope, s, strict=True)) + link * max(s)


@pytest.mark.parametrize("tried", [search.TRIED, 0])  # 0: the way downhill, which large problems take
def test_the_least_is_found(tried: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "TRIED", tried)
    generator = random.Random(0)
    for _ in range(60):
        parts = generator.choice([2, 3, 4])
        total = generator.randint(parts, 14)
        cost = slowest(generator, parts)
        found = least(total, [generator.random() + 0.1 for _ in range(parts)], cost)
        assert sum(found) == total
        assert cost(found) == pytest.approx(min(map(cost, every(total, parts))))


def test_of_equals_the_most_even_one() -> None:
    assert least(6, [1, 1, 1], lambda _: 1.0) == (2, 2, 2)
    assert least(7, [5, 1], lambda s: math.inf if s[0] > 4 else 0.0) in ((3, 4), (4, 3))


def test_too_few_to_divide() -> None:
    with pytest.raises(ValueError, match="among 3 ranks"):
        least(2, [1, 1, 1], lambda _: 0.0)


def test_reduced_keeps_proportions() -> None:
    assert reduced((48, 16)) == (3, 1)
    assert reduced((7, 3)) == (7, 3)
