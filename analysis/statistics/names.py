"""Short names for arms whose settings are too many for a legend: the same name for the same arm everywhere."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from analysis.rows.comparing.arms import Arm, spelling
from analysis.rows.comparing.canonical import canonical
from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.statistics.measures import bits as bits_of
from comm_compress.labels import parse_label, trained_label

LONGEST = 40  # letters


def named(comparisons: Sequence[Comparison], longest: int = LONGEST) -> list[Comparison]:
    """The same comparisons, in which arms with a label of more than ``longest`` letters have a short name.

    The name leaves out the settings that all arms of its two methods have in common. Where that is not short enough it
    says how many bits the arm sent (`measures.bits`), ``uniform + delta, 5.1 bits``, and numbers those still equal.
    """
    arms = list(dict.fromkeys(runs.arm for c in comparisons for runs in c.arms))
    names = _names(arms, _bits(comparisons), longest)
    return [renamed(comparison, names) for comparison in comparisons]


def called(text: str, comparisons: Sequence[Comparison]) -> str:
    """The label of the arm that a user means, by its label, however written, or by the name that figures give it.

    ``text`` itself where it means no arm."""
    arms = [runs.arm for comparison in comparisons for runs in comparison.arms]
    labels = {arm.label for arm in arms}
    if (label := next((name for name in (text, spelling(text)) if name in labels), None)) is not None:
        return label
    names = [runs.arm.label for comparison in named(comparisons) for runs in comparison.arms]
    return next((arm.label for arm, name in zip(arms, names, strict=True) if name == text), text)


def full(arm: Arm) -> str:
    """The arm's label with all its settings."""
    return replace(arm, name=None).label


def _bits(comparisons: Sequence[Comparison]) -> dict[Arm, float]:
    """What each arm is placed by (`measures.bits`), of the first run that knows it."""
    by_arm: dict[Arm, float] = {}
    for runs in (runs for comparison in comparisons for runs in comparison.arms):
        known = (bits for row in runs.runs.values() if (bits := bits_of(row)) is not None)
        first = next(known, None)
        if first is not None:
            by_arm.setdefault(runs.arm, first)
    return by_arm


def _names(arms: Sequence[Arm], bits: dict[Arm, float], longest: int) -> dict[Arm, str]:
    taken = {arm.label for arm in arms if len(arm.label) <= longest}
    families: dict[str, list[Arm]] = {}
    for arm in arms:
        families.setdefault(_methods(arm), []).append(arm)
    common = {methods: _common(alike) for methods, alike in families.items()}
    numbers: dict[str, itertools.count[int]] = {}
    chosen: dict[Arm, str] = {}
    for arm in arms:
        if len(arm.label) > longest:
            short = _without(arm, common[_methods(arm)])
            plain = _methods(arm) + (f", {bits[arm]:.1f} bits" if arm in bits else "")
            following = numbers.setdefault(plain, itertools.count(2))
            numbered = (f"{plain} no. {number}" for number in following)
            candidates = itertools.chain([short] if len(short) <= longest else [], [plain], numbered)
            chosen[arm] = next(name for name in candidates if name not in taken)
            taken.add(chosen[arm])
    return chosen


def _methods(arm: Arm) -> str:
    both = arm.gradients if arm.parameters == "none" else f"{arm.gradients} + {arm.parameters}"
    if arm.compresses_activations:
        ways = (parse_label(text).name for text in (arm.activations, arm.activation_gradients))
        both = f"{both}, activations {' + '.join(ways)}"
    if arm.compresses_optimizer:
        both = f"{both}, optimizer {parse_label(arm.optimizer).name}"
    if arm.takes_local_steps:
        sent = parse_label(arm.outer_method).name
        both = f"{both}, every {arm.outer_every} {arm.outer}" + (f" {sent}" if sent != "none" else "")
    return trained_label(both, {name: json.loads(value) for name, value in arm.training})


Settings = frozenset[tuple[str, str]]  # names and values, these as canonical JSON


def _common(alike: Sequence[Arm]) -> tuple[Settings, Settings]:
    """The settings, of either method, that all of ``alike`` have. A single arm has none in common, so its label stays
    whole."""
    if len(alike) == 1:
        return frozenset(), frozenset()
    gradients = frozenset.intersection(*(_settings(arm.gradient_settings) for arm in alike))
    return gradients, frozenset.intersection(*(_settings(arm.parameter_settings) for arm in alike))


def _settings(text: str) -> Settings:
    return frozenset((name, canonical(value)) for name, value in json.loads(text).items())


def _without(arm: Arm, common: tuple[Settings, Settings]) -> str:
    """The arm's label without those settings."""

    def rest(settings: str, left_out: Settings) -> str:
        own = json.loads(settings).items()
        return canonical({name: value for name, value in own if (name, canonical(value)) not in left_out})

    gradients, parameters = common
    return replace(
        arm,
        gradient_settings=rest(arm.gradient_settings, gradients),
        parameter_settings=rest(arm.parameter_settings, parameters),
    ).label


def renamed(comparison: Comparison, names: Mapping[Arm, str]) -> Comparison:
    """The same comparison, in which these arms are called so."""

    def rename(runs: ArmRuns) -> ArmRuns:
        return replace(runs, arm=replace(runs.arm, name=names[runs.arm])) if runs.arm in names else runs

    arms = [rename(runs) for runs in comparison.arms]
    places = [place for place, runs in enumerate(comparison.arms) if runs is comparison.baseline]
    return replace(comparison, arms=arms, baseline=arms[places[0]] if places else None)
