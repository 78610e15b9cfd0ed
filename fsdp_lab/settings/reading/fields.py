"""Settings as frozen dataclasses: a field is a flag, with its help text, its limits and its choices.

``Settings`` is one group of fields (of the optimiser, of the data), ``Config`` puts groups together; ``cli`` turns a
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
    """The settings are wrong: the message lists all complaints at once, one on each line."""

    def __init__(self, complaints: Sequence[str]) -> None:
        self.complaints = list(complaints)
        count = "a problem" if len(self.complaints) == 1 else f"{len(self.complaints)} problems"
        super().__init__(f"{count} with the settings\n" + "\n".join(f"  {line}" for line in self.complaints))


class Settings:
    """One group of settings; a subclass is a frozen dataclass of ``setting`` fields, checked when it is built."""

    @classmethod
    def said(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The settings for which ``values``, given by name, stand. ConfigError where they contradict each other."""
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
    """All groups of a program's settings; a subclass is a frozen dataclass whose fields are ``Settings``."""

    @classmethod
    def groups(cls) -> dict[str, type[Settings]]:
        """The class of each group by its field: ``{"data": DataConfig, ...}``."""
        return typing.get_type_hints(cls)

    @classmethod
    def specs(cls) -> dict[str, Spec]:
        """Every setting by the name of its flag, in order; names are unique across the groups."""
        specs = [spec for group in cls.groups().values() for spec in specs_of(group)]
        by_name = {spec.name: spec for spec in specs}
        assert len(by_name) == len(specs), "two groups share a setting's name"
        return by_name

    @classmethod
    def of(cls, **values: Any) -> Self:
        """A config from its settings by name: ``TrainConfig.of(batch_size=4)``. ConfigError lists what is wrong."""
        groups, complaints = cls.built(values)
        if complaints:
            raise ConfigError(complaints)
        return cls(**groups)

    @classmethod
    def built(cls, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The groups built from ``values`` by setting, and complaints; a group with a complaint is left out."""
        unknown = values.keys() - cls.specs().keys()
        groups, complaints = {}, [f"{name}: no such setting" for name in sorted(unknown)]
        for name, group in cls.groups().items():
            try:
                given = {s.name: values[s.name] for s in specs_of(group) if s.name in values}
                groups[name] = group(**group.said(given))
            except ConfigError as error:
                complaints += error.complaints
        return groups, complaints

    def conflicts(self) -> list[str]:
        """A complaint for each pair of settings that exclude each other; a subclass overrides this."""
        return []

    @classmethod
    def foreign(cls) -> dict[str, str]:
        """Why this program lacks flags that another one has, by how their names begin; a subclass overrides this."""
        return {}

    def resolved(self) -> dict[str, Any]:
        """The value of every setting by its name, without groups, in the order of their definition."""
        return {s.name: getattr(getattr(self, name), s.name) for name, g in self.groups().items() for s in specs_of(g)}

    def to_yaml(self) -> str:
        """The resolved settings as YAML text that ``--config`` reads back."""
        return dump_yaml(self.resolved())

    def digest(self) -> str:
        """The sha256 (hex) of the settings that affect the training: runs with equal digests are equal.

        Settings at their defaults are left out. So a new setting, whose default is what was done before it existed,
        changes no digest, and finished sweeps stay finished.
        """
        specs, resolved = self.specs().values(), self.resolved()
        return digest_of(
            {s.name: resolved[s.name] for s in specs if s.affects_training and resolved[s.name] != s.default}
        )


def digest_of(values: Mapping[str, Any]) -> str:
    """The sha256 (hex) of values that JSON can hold. It is the same in every process and for every order of keys."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
