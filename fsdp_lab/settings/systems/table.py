"""All systems, and one of them by its name or by that of a recipe."""

from __future__ import annotations

import difflib

from fsdp_lab.settings.systems.few_bits import FEW_BITS
from fsdp_lab.settings.systems.gradients import GRADIENTS
from fsdp_lab.settings.systems.kinds import Recipe, System
from fsdp_lab.settings.systems.local_steps import LOCAL_STEPS
from fsdp_lab.settings.systems.missing import MISSING
from fsdp_lab.settings.systems.optimizers import OPTIMIZERS
from fsdp_lab.settings.systems.sharded import SHARDED
from fsdp_lab.settings.systems.sixteen_bits import SIXTEEN_BITS

NONE = "none"
"""The name that stands for no system: settings are meant as they are given."""

SYSTEMS: tuple[System, ...] = (*SIXTEEN_BITS, *SHARDED, *GRADIENTS, *OPTIMIZERS, *LOCAL_STEPS, *FEW_BITS)
"""All systems that can be run, as the reference lists them."""


def recipes() -> dict[str, Recipe]:
    """Every recipe by its name, which is what ``--system`` takes."""
    return {recipe.name: recipe for system in SYSTEMS for recipe in system.recipes}


def recipe(name: str) -> Recipe:
    """The recipe of this name. ValueError for one that is not there, with the nearest name or why it is missing."""
    known = recipes().get(name)
    if known is None:
        raise ValueError(unknown(name))
    return known


def system(name: str) -> System:
    """The system that has a recipe of this name. ValueError as `recipe`."""
    recipe(name)
    return next(system for system in SYSTEMS if name in (recipe.name for recipe in system.recipes))


def unknown(name: str) -> str:
    """Why there is no system ``name``: the reason, where it is known to be missing, and else the nearest names."""
    for missing in MISSING:
        if missing.name.lower() == name.lower():
            return f"{missing.name} cannot be run here: {missing.why} (fsdp-lab systems lists what can)"
    close = difflib.get_close_matches(name.lower(), recipes(), n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"no system {name!r}{hint} (fsdp-lab systems lists all)"
