"""The weights of a data mix as shares (fractions) of its tokens."""

import math
from collections.abc import Mapping
from typing import Any

from fsdp_lab.files.errors import DataError

_LARGEST = 1e100  # sums of them, and what is counted with them, stay floats
_SMALLEST_SHARE = 1e-15  # one token in a thousand times more than any corpus has


def shares(mix: Mapping[str, Any]) -> dict[str, float]:
    """The share of each source of ``mix``, which maps sources to weights, sorted by the sources' names.

    Raises DataError for a value that is no weight.
    """
    for name, weight in mix.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 < weight <= _LARGEST:
            wanted = f"a number above 0, at most {_LARGEST:g}"
            raise DataError(f"data_mix: the weight of {name!r} is {weight!r}, wants {wanted}")
    total = math.fsum(mix.values())
    by_source = {name: mix[name] / total for name in sorted(mix)}
    for name, share in by_source.items():
        if share < _SMALLEST_SHARE:
            of = f"{mix[name]!r} of {total!r}"
            raise DataError(f"data_mix: the weight of {name!r} is {of}: nothing of it would be seen")
    return by_source
