"""Who gets what, so that ranks have about equally much to do."""

from __future__ import annotations

from collections.abc import Sequence


def least_loaded(sizes: Sequence[int], loads: Sequence[int]) -> list[int]:
    """Return which rank gets each thing: the largest first, always to the one that has the fewest elements so far.

    ``loads``: how many elements each rank has before.
    """
    owners, loads = [0] * len(sizes), list(loads)
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        owners[i] = loads.index(min(loads))
        loads[owners[i]] += sizes[i]
    return owners
