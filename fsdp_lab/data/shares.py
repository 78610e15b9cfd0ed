"""A mix's weights as shares of its tokens."""

import math
from collections.abc import Mapping
from typing import Any

from fsdp_lab.data.errors import DataError


def shares(mix: Mapping[str, Any]) -> dict[str, float]:
    """The shares of ``mix``, a weight by source, sorted by name: the same mix however it is written.

    Raises DataError for what is no weight.
    """
    for name, weight in mix.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not math.isfinite(weight) or weight <= 0:
            raise DataError(f"data_mix: the weight of {name!r} is {weight!r}, wants a number above 0")
    total = math.fsum(mix.values())
    return {name: mix[name] / total for name in sorted(mix)}
