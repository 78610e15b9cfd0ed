"""The whole numbers, one for each rank, that make something least: all of them tried where they are few."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations

Shares = tuple[int, ...]
Cost = Callable[[Shares], float]
TRIED = 1200
"""So many ways to divide are all tried; beyond, the search goes downhill from equal and from proportional shares."""
_PAIRS_UP_TO = 5  # ranks for which two exchanges at once are tried as well


def compositions(total: int, parts: int) -> Iterator[Shares]:
    """All ways to write ``total`` as a sum of ``parts`` whole numbers above 0."""
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def num_compositions(total: int, parts: int) -> int:
    """In how many ways ``parts`` positive whole numbers add up to ``total``."""
    return math.comb(total - 1, parts - 1) if total >= parts else 0


def least(total: int, speeds: Sequence[float], cost: Cost) -> Shares:
    """The division of ``total`` among ``len(speeds)`` ranks, at least 1 each, that costs least.

    Of several, the most even one. ``speeds``: where a search that cannot try all begins. Costs may be infinite.
    ValueError when ``total`` is less than the ranks.
    """
    parts = len(speeds)
    if total < parts:
        raise ValueError(f"{total} cannot be divided among {parts} ranks")
    known: dict[Shares, tuple[float, int]] = {}

    def rated(shares: Shares) -> tuple[float, int]:
        if shares not in known:
            known[shares] = (cost(shares), sum(share * share for share in shares))
        return known[shares]

    if num_compositions(total, parts) <= TRIED:
        return min(compositions(total, parts), key=rated)
    starts = [_even(total, [1.0] * parts), _even(total, speeds)]
    return min((_downhill(start, rated) for start in starts), key=rated)


def _downhill(shares: Shares, rated: Callable[[Shares], tuple[float, int]]) -> Shares:
    """Moves units from one rank to another while that helps, many at a time, then fewer."""
    step = max(1, sum(shares) // 8)
    while True:
        best = min(_moves(shares, step), key=rated, default=shares)
        if rated(best) < rated(shares):
            shares = best
        elif step == 1:
            return shares
        else:
            step //= 2


def _moves(shares: Shares, step: int) -> list[Shares]:
    """``step`` units from one rank to another; the smallest step also between two pairs of ranks at once.

    Where two ranks are slowest together, relieving one of them alone changes nothing.
    """
    single = [
        tuple(x - step * (i == source) + step * (i == to) for i, x in enumerate(shares))
        for source, to in permutations(range(len(shares)), 2)
    ]
    moves = {move for move in single if min(move) > 0}
    if step == 1 and len(shares) <= _PAIRS_UP_TO:
        both = (
            tuple(x + y - z for x, y, z in zip(one, other, shares, strict=True))
            for one, other in combinations(single, 2)
        )
        moves |= {move for move in both if min(move) > 0 and move != shares}
    return sorted(moves)


def _even(total: int, weights: Sequence[float]) -> Shares:
    """``total`` in proportion to ``weights``, at least 1 each."""
    parts = [max(1, round(total * weight / sum(weights))) for weight in weights]
    while (excess := sum(parts) - total) != 0:
        where = parts.index(max(parts))
        parts[where] -= 1 if excess > 0 else -1
    return tuple(parts)


def reduced(shares: Shares) -> Shares:
    """The same proportions in the smallest whole numbers."""
    divisor = math.gcd(*shares)
    return tuple(share // divisor for share in shares)
