"""Complaints about a recipe: all at once, each naming its key and what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from fsdp_lab.settings.reading.specs import Spec


class RecipeError(ValueError):
    """Everything that is wrong with a recipe, one complaint a line."""

    def __init__(self, path: object, complaints: Iterable[str]) -> None:
        self.complaints = list(complaints)
        count = "a problem" if len(self.complaints) == 1 else f"{len(self.complaints)} problems"
        super().__init__("\n".join([f"{path}: {count}", *(f"  {line}" for line in self.complaints)]))


def unknown(name: object, known: Iterable[str]) -> str:
    """The complaint about an unknown key: ``key: no such key; did you mean other?``"""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"{name}: no such key{f'; did you mean {close[0]}?' if close else ''}"


def got(value: Any) -> str:
    """What stands where something else is wanted: ``missing``, or ``got 3``."""
    return "missing" if value is None else f"got {value!r}"


def checked_settings(
    where: str, values: Any, specs: Mapping[str, Spec], elsewhere: Mapping[str, str], complaints: list[str]
) -> dict[str, Any]:
    """``values`` as settings of the right types, which ``specs`` has by name; complaints go to ``complaints``.

    ``elsewhere`` names settings that another key of the recipe sets."""
    if not isinstance(values, Mapping):
        complaints.append(f"{where}: got {values!r}, wants settings such as max_steps: 400")
        return {}
    names = [name for name in specs if name not in elsewhere]
    fine = {}
    for name, value in values.items():
        if name in elsewhere:
            complaints.append(f"{where}.{name}: {elsewhere[name]}")
        elif name not in names:
            complaints.append(f"{where}.{unknown(name, names)}")
        else:
            try:
                fine[name] = specs[name].check(value)
            except ValueError as error:
                complaints.append(f"{where}.{name}: got {value!r}, {error}")
    return fine
