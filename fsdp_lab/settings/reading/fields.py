"""Settings as frozen dataclasses: a field is a flag, with its help, range and choices beside it.

``Settings`` is one group of fields (the optimiser's, the data's), ``Config`` composes groups; ``cli`` turns a
``Config`` into flags and YAML. Nothing here knows about training, and nothing imports torch.
"""

import hashlib
import json
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Self

from fsdp_lab.settings.reading.specs import Spec, setting, specs_of
from fsdp_lab.settings.reading.strict import dump_yaml

__all__ = ["Config", "ConfigError", "Settings", "digest_of", "setting"]


class ConfigError(ValueError):
    """What is wrong with the settings: every complaint at once, one a line."""

    def __init__(self, complaints: Sequence[str]) -> None:
        self.complaints = list(complaints)
        count = "a problem" if len(self.complaints) == 1 else f"{len(self.complaints)} problems"
        super().__init__(f"{count} with the settings\n" + "\n".join(f"  {line}" for line in self.complaints))


class Settings:
    """One group of settings; a subclass is a frozen dataclass of ``setting`` fields, checked when it is built."""

    @classmethod
    def said(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """What ``values``, those that were given by name, stand for; ConfigError where they contradict each other."""
        return dict(values)

    def __post_init__(self) -> None:
        complaints = []
        for spec in specs_of(type(self)):
            value = getattr(self, spec.name)
            try:
                object.__setattr__(self, spec.name, spec.check(value))  # an int becomes the float that was asked for
            except ValueError as error:
                complaints.append(f"{spec.name}: got {value!r}, {error}")
        if complaints:
            raise ConfigError(complaints)


class Config:
    """Groups of settings as one whole; a subclass is a frozen dataclass whose fields are ``Settings``."""

    @classmethod
    def groups(cls) -> dict[str, type[Settings]]:
        """The groups by field name: ``{"data": DataConfig, ...}``."""
        return typing.get_type_hints(cls)

    @classmethod
    def specs(cls) -> dict[str, Spec]:
        """Every setting by its flag name, in order; names are unique across the groups."""
        found = [spec for group in cls.groups().values() for spec in specs_of(group)]
        named = {spec.name: spec for spec in found}
        assert len(named) == len(found), "two groups share a setting's name"
        return named

    @classmethod
    def of(cls, **values: Any) -> Self:
        """A config from flat names: ``TrainConfig.of(batch_size=4)``. ConfigError for what does not fit."""
        parts, complaints = cls.parts(values)
        if complaints:
            raise ConfigError(complaints)
        return cls(**parts)

    @classmethod
    def parts(cls, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The groups that flat ``values`` make, by field name, and complaints; a group with a complaint is left out."""
        unknown = values.keys() - cls.specs().keys()
        parts, complaints = {}, [f"{name}: no such setting" for name in sorted(unknown)]
        for name, group in cls.groups().items():
            try:
                given = {s.name: values[s.name] for s in specs_of(group) if s.name in values}
                parts[name] = group(**group.said(given))
            except ConfigError as error:
                complaints += error.complaints
        return parts, complaints

    def conflicts(self) -> list[str]:
        """What is wrong with settings that are fine each by itself: a complaint each. A subclass knows."""
        return []

    def resolved(self) -> dict[str, Any]:
        """Every setting and its value, flat, in the order they are written."""
        return {s.name: getattr(getattr(self, part), s.name) for part, g in self.groups().items() for s in specs_of(g)}

    def to_yaml(self) -> str:
        """The resolved settings as text that ``--config`` reads back."""
        return dump_yaml(self.resolved())

    def digest(self) -> str:
        """The sha256 (hex) of the settings that affect the training: equal digests, equal runs.

        Settings at their defaults are left out: a new one, whose default is what was done before it existed, leaves
        digests, and so finished sweeps, as they were.
        """
        specs, resolved = self.specs().values(), self.resolved()
        return digest_of(
            {s.name: resolved[s.name] for s in specs if s.affects_training and resolved[s.name] != s.default}
        )


def digest_of(values: Mapping[str, Any]) -> str:
    """The sha256 (hex) of JSON-like values, the same in every process; the order of keys does not matter."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
