"""Values as text, the same text for the same value."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any


def canonical(value: Any) -> str:
    """The value as JSON, the same text for the same value."""
    return _plain(value) if value is None or isinstance(value, str | int | float) else dumped(value)


@lru_cache(maxsize=4096, typed=True)
def _plain(value: Any) -> str:
    """`dumped`, remembered for the few values that all rows have."""
    return dumped(value)


dumped = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
