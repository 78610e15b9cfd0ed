"""How many heads, columns, positions or words each rank gets, equal or in given shares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def counts(total: int, shares: Sequence[float]) -> list[int]:
    """Divide ``total`` in proportion to ``shares``, by the method of largest remainders: the counts add up to it.

    Of equal remainders the first rank's is rounded up.
    """
    whole = sum(shares)
    exact = [total * share / whole for share in shares]
    rounded = [int(x) for x in exact]
    by_remainder = sorted(range(len(shares)), key=lambda rank: (rounded[rank] - exact[rank], rank))
    for rank in by_remainder[: total - sum(rounded)]:
        rounded[rank] += 1
    return rounded


def ranges(sizes: Sequence[int]) -> list[range]:
    """Where each rank's part lies when ``sizes`` follow one another."""
    return [range(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0))]


def counts_for_all(what: str, total: int, shares: Sequence[float]) -> list[int]:
    """As `counts`; ValueError when a rank would be left without any ``what``."""
    sizes = counts(total, shares)
    if 0 in sizes:
        told = ", ".join(f"{share:g}" for share in shares)
        raise ValueError(
            f"shares: of {total} {what} in shares {told}, rank {sizes.index(0)} would get none; "
            "divide among fewer ranks, or give it a larger share"
        )
    return sizes
