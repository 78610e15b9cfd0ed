"""An arm of a comparison: how communication is done, in both directions. All else is equal within a comparison.
(`analysis.chart` also compares across what moves the weights: an arm may say that, too.)

none                                                        stock FSDP2, the baseline
int8                                                        gradients by int8, parameters uncompressed
int4 hadamard + delta                                       with settings, and both directions, as figures name them
{gradients: {method: topk, ratio: 0.01}, parameters: int8}
{gradients: bf16, parameters: bf16, comm_dtype: bf16}       and any further setting of communication
{gradients: {method: topk, ratio: [0.001, 0.01, 0.1]}}      a list stands for one arm each (no setting is a list)
{system: sdp4bit}                                           a published system (fsdp-lab systems): the arm it stands for
{system: demo, optimizer: demo, dp_replicas: 2}             what moves the weights, and how many copies there are
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from comm_compress.labels import arm_label, label, trained_label
from experiments.sweeps.recipe.complaints import checked_settings, unknown
from fsdp_lab.settings.groups import CommConfig, OptimConfig, ParallelConfig
from fsdp_lab.settings.methods import complaints_about
from fsdp_lab.settings.reading import method_flags
from fsdp_lab.settings.reading.specs import specs_of

DIRECTIONS = {"gradients": ("comm_compress", "comm_config_json"), "parameters": ("param_compress", "param_config_json")}
_METHODS = {name for pair in DIRECTIONS.values() for name in pair}
_UNSAID = {name: getattr(CommConfig("none"), name) for name in sorted(_METHODS)}
FURTHER = {spec.name: spec for spec in specs_of(CommConfig) if spec.name not in _METHODS}
_TRAINING = (
    *("optimizer", "muon_momentum", "demo_decay", "adam_freeze_after", "dion_rank", "dion_learning_rate"),
    *("dion_momentum", "adam_variance_scaler", "adam_local_scaler", "adam_local_steps", "dp_replicas"),
)  # as analysis.rows.comparing.setting_roles has them, which is above this package: a test holds them equal
TRAINING = {
    spec.name: spec for group in (OptimConfig, ParallelConfig) for spec in specs_of(group) if spec.name in _TRAINING
}
"""Settings of what moves the weights, which an arm may say: only `analysis.chart` compares such arms with others."""


@dataclass(frozen=True)
class Arm:
    """One arm. ``settings`` are those of `CommConfig` that it gives, both methods among them; ``training`` those of
    `TRAINING`."""

    label: str
    settings: Mapping[str, Any]
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_baseline(self) -> bool:
        """Is it stock FSDP2 in both directions, with nothing else changed?"""
        return self.label == "none"


def arms_of(listed: Any, complaints: list[str]) -> list[Arm]:
    """All arms, the baseline first, the others in the recipe's order; complaints are added to ``complaints``."""
    if not isinstance(listed, list) or not listed:
        complaints.append("arms: wants a list of methods such as [none, int8]")
        return []
    arms: dict[str, Arm] = {}
    for number, said in enumerate(listed, start=1):
        where = f"arms[{number}]"
        for choice in _choices(said, where, complaints):
            arm = _arm(choice, where, complaints)
            if arm is None:
                continue
            if arm.label in arms:
                complaints.append(f"{where}: {arm.label!r} is there already")
            arms[arm.label] = arm
    return sorted(arms.values(), key=lambda arm: not arm.is_baseline)


def _choices(said: Any, where: str, complaints: list[str]) -> Iterator[dict[str, Any]]:
    """One arm for each combination of the listed values."""
    if isinstance(said, str) or (isinstance(said, Mapping) and "method" in said):
        said = {"gradients": said}
    if not isinstance(said, Mapping):
        complaints.append(f"{where}: got {said!r}, wants a method or an object with gradients and parameters")
        return
    known = [*DIRECTIONS, *FURTHER, *TRAINING]
    if strange := [name for name in said if name not in known]:
        complaints += [f"{where}.{unknown(name, known)}" for name in strange]
        return
    options = {name: _options(value, is_method=name in DIRECTIONS) for name, value in said.items()}
    for values in itertools.product(*options.values()):
        yield dict(zip(options, values, strict=True))


def _options(value: Any, is_method: bool) -> list[Any]:
    if isinstance(value, list):
        return [option for item in value for option in _options(item, is_method)]
    if is_method and isinstance(value, Mapping):
        lists = [item if isinstance(item, list) else [item] for item in value.values()]
        return [dict(zip(value, items, strict=True)) for items in itertools.product(*lists)]
    return [value]


def _arm(choice: Mapping[str, Any], where: str, complaints: list[str]) -> Arm | None:
    before = len(complaints)
    methods = _methods(choice, where, complaints)
    further = {name: value for name, value in choice.items() if name not in (*DIRECTIONS, *TRAINING)}
    said = methods | checked_settings(where, further, FURTHER, {}, complaints)
    moved = {name: value for name, value in choice.items() if name in TRAINING}
    training = checked_settings(where, moved, TRAINING, {}, complaints)
    if len(complaints) > before:
        return None
    settings, wrong = method_flags.spelled_out(said)
    if not wrong:
        settings = _UNSAID | settings
        wrong = complaints_about(CommConfig(**settings))
    what = " + ".join(map(str, methods.values() or choice.values())) if wrong else label_of(settings, training)
    complaints += [f"{where} ({what}): {_in_words_of_the_recipe(complaint)}" for complaint in wrong]
    return None if wrong else Arm(what, settings, training)


def _methods(choice: Mapping[str, Any], where: str, complaints: list[str]) -> dict[str, str]:
    """The labels of those methods that the arm names, by flag; gradients are named by every arm but a system's, and one
    that says what moves the weights."""
    labels = {}
    for direction in DIRECTIONS:
        if direction not in choice and (direction != "gradients" or {"system", *TRAINING} & choice.keys()):
            continue
        said = choice.get(direction, "none")
        try:
            method = method_flags.text_of(said)
        except ValueError:
            method = None
        if isinstance(method, str):
            labels[DIRECTIONS[direction][0]] = method
        else:
            complaints.append(f"{where}.{direction}: got {said!r}, wants a method's name or {{method: NAME, ...}}")
    return labels


def label_of(settings: Mapping[str, Any], training: Mapping[str, Any] | None = None) -> str:
    """The label of an arm, as figures name it: both methods, and what else of its communication is not the default.

    ``training``: what moves the weights, where the arm says it."""
    both = [label(settings[method], settings[own]) for method, own in DIRECTIONS.values()]
    said = {part: settings[key] for part, key in method_flags.FURTHER.items() if key in settings}
    others = settings.keys() & FURTHER.keys() - set(method_flags.FURTHER.values())
    text = ", ".join([arm_label(*both, **said), *(f"{key}={_shown(settings[key])}" for key in sorted(others))])
    return trained_label(text, training or {})


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _in_words_of_the_recipe(text: str) -> str:
    for direction, (method_key, _) in DIRECTIONS.items():
        text = text.removeprefix(f"{method_key}: ")
        for word in ("as", "for"):
            text = text.replace(f"{word} {method_key}", f"for {direction}")
    return " ".join(text.split())
