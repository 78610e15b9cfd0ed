"""Short names for arms whose settings are too many for a legend: the same name for the same arm everywhere."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

from analysis.arms import Arm, ArmRuns, Comparison
from analysis.measures import bits_per_parameter

LONGEST = 40  # letters


def named(comparisons: Sequence[Comparison], longest: int = LONGEST) -> list[Comparison]:
    """The same comparisons; arms with a label of more than ``longest`` letters have a name.

    It leaves out the settings that all arms of its two methods have in common; where that is not short enough either
    it says what they sent a parameter and step, ``uniform + delta, 5.1 bits``, and numbers what is still alike."""
    arms = list(dict.fromkeys(runs.arm for c in comparisons for runs in c.arms))
    names = _names(arms, _bits(comparisons), longest)
    return [_renamed(comparison, names) for comparison in comparisons]


def full(arm: Arm) -> str:
    """What the arm would be called with all its settings."""
    return replace(arm, name=None).label


def _bits(comparisons: Sequence[Comparison]) -> dict[Arm, float]:
    """Of the first run that knows."""
    found: dict[Arm, float] = {}
    for runs in (runs for comparison in comparisons for runs in comparison.arms):
        known = [bits for row in runs.runs.values() if (bits := bits_per_parameter(row)) is not None]
        if known:
            found.setdefault(runs.arm, known[0])
    return found


def _names(arms: Sequence[Arm], bits: dict[Arm, float], longest: int) -> dict[Arm, str]:
    taken = {arm.label for arm in arms if len(arm.label) <= longest}
    found: dict[Arm, str] = {}
    for arm in arms:
        if len(arm.label) > longest:
            short = _without_the_common(arm, [a for a in arms if _methods(a) == _methods(arm)])
            plain = _methods(arm) + (f", {bits[arm]:.1f} bits" if arm in bits else "")
            numbered = (f"{plain} no. {number}" for number in itertools.count(2))
            candidates = itertools.chain([short] if len(short) <= longest else [], [plain], numbered)
            found[arm] = next(name for name in candidates if name not in taken)
            taken.add(found[arm])
    return found


def _methods(arm: Arm) -> str:
    return arm.gradients if arm.parameters == "none" else f"{arm.gradients} + {arm.parameters}"


def _without_the_common(arm: Arm, alike: Sequence[Arm]) -> str:
    """The arm's label without the settings, of either method, that all of ``alike`` have; in full for a lone one."""
    if len(alike) == 1:
        return arm.label

    def rest(settings: str, others: Sequence[str]) -> str:
        all_of_them = [json.loads(text) for text in others]
        own = json.loads(settings).items()
        return json.dumps({k: v for k, v in own if any(k not in o or o[k] != v for o in all_of_them)}, sort_keys=True)

    gradients = rest(arm.gradient_settings, [a.gradient_settings for a in alike])
    parameters = rest(arm.parameter_settings, [a.parameter_settings for a in alike])
    return replace(arm, gradient_settings=gradients, parameter_settings=parameters).label


def _renamed(comparison: Comparison, names: dict[Arm, str]) -> Comparison:
    def rename(runs: ArmRuns) -> ArmRuns:
        return replace(runs, arm=replace(runs.arm, name=names[runs.arm])) if runs.arm in names else runs

    arms = [rename(runs) for runs in comparison.arms]
    places = [place for place, runs in enumerate(comparison.arms) if runs is comparison.baseline]
    return replace(comparison, arms=arms, baseline=arms[places[0]] if places else None)
