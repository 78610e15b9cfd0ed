"""Settings as trackers take them: plain numbers, truth values and text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def flat(values: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """``values`` with objects and lists as JSON, and nothing (None) as the word none."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> bool | int | float | str:
    if value is None:
        return "none"
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, sort_keys=True)
