"""The learning rate of each arm of a recipe, as `fsdp-lab chart rates` chose it from the rows of an earlier sweep.

rates: results/chart_rates.json      # {"chosen": {"none": {"learning_rate": 0.002}, ...}, ...}

The choice is a file of its own, so that a sweep which goes on after an interruption runs the cells that it had: rows
that come later change nothing until somebody chooses again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.sweeps.recipe.arms import Arm, label_of

COMMAND = "fsdp-lab chart rates ROWS.jsonl --out {}"


@dataclass(frozen=True)
class Rates:
    """What was chosen for each arm, by its label. ``chosen`` None: the file is not there yet."""

    path: Path
    chosen: Mapping[str, Mapping[str, Any]] | None

    @property
    def is_there(self) -> bool:
        """Is the file there, so that every arm has a rate?"""
        return self.chosen is not None

    def of(self, arm: Arm) -> Mapping[str, Any]:
        """The settings chosen for the arm; none while there is no file."""
        return {} if self.chosen is None else self.chosen[key(arm)]


def key(arm: Arm) -> str:
    """The arm's label as figures write it, which the file has: a method's settings in the order of the alphabet."""
    ordered = json.loads(json.dumps(dict(arm.settings), sort_keys=True))
    return label_of(ordered, arm.training)


def rates_of(said: Any, arms: Sequence[Arm], complaints: list[str]) -> Rates | None:
    """The rates in the file that a recipe names; None: it names none, or ``complaints`` say what is wrong."""
    if said is None:
        return None
    if not isinstance(said, str):
        complaints.append(f"rates: got {said!r}, wants the file that `fsdp-lab chart rates` wrote")
        return None
    path = Path(said)
    if not path.exists():
        return Rates(path, None)
    try:
        chosen = json.loads(path.read_text())["chosen"]
        rates = Rates(path, {label: dict(values) for label, values in chosen.items()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        complaints.append(f"rates: {path} was not written by `fsdp-lab chart rates` ({type(error).__name__}: {error})")
        return None
    assert rates.chosen is not None
    lacking = [arm.label for arm in arms if key(arm) not in rates.chosen]
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        complaints.append(f"rates: {path} has none for {', '.join(lacking[:3])}{more}; tune these arms, too")
        return None
    return rates
