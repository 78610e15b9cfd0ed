"""What must be equal for rows to be compared: every setting but how they communicate, the seed and what was tuned."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from analysis.rows.comparing.arms import NAMED
from analysis.rows.comparing.canonical import canonical, dumped
from analysis.rows.comparing.setting_roles import TRAINING, arm_settings, is_as_before, side_settings
from fsdp_lab.settings.user_errors import printable

_ADAPTERS = {"lora_rank", "lora_alpha", "lora_dropout", "lora_targets"}


TUNED = ("learning_rate",)


@dataclass(frozen=True)
class Setting:
    """What must be equal within a comparison. ``config`` has settings by name, values as canonical JSON."""

    world_size: int
    link_rate: float | None
    link_delay_ms: float
    config: tuple[tuple[str, str], ...]

    @cached_property
    def label(self) -> str:
        """The setting as a text: ``gpt2-nano, 2 ranks, 300 steps, 200 Mbit/s``."""
        config = {name: json.loads(text) for name, text in self.config}
        target = config.get("target_dir")
        parts = [
            f"draft of {target}" if target else str(config.get("model_dir") or config.get("model") or "?"),
            f"{self.world_size}{' virtual' * bool(config.get('virtual_ranks'))} rank{'s' * (self.world_size > 1)}",
        ]
        ways = {"tp": config.get("layout") or "tp", "pp": "pp"}
        parts += [f"{name} {config[way]}" for way, name in ways.items() if (config.get(way) or 1) > 1]
        parts += [f"LoRA rank {config['lora_rank']}"] if config.get("lora_rank") else []
        parts += [f"{config['max_steps']} steps"] if config.get("max_steps") else []
        parts += [_rate(self.link_rate)] if self.link_rate else []
        parts += [f"{self.link_delay_ms:g} ms"] if self.link_delay_ms else []
        return printable(", ".join(parts))

    def differences(self, other: Setting) -> list[str]:
        """What differs from ``other``, a text for each setting: ``max_steps 300, not 200``."""
        mine, its = self._all, other._all
        names = sorted(name for name in mine.keys() | its.keys() if mine.get(name) != its.get(name))
        return [f"{n} {mine.get(n, '-')}, not {its.get(n, '-')}" for n in names]

    @cached_property
    def _all(self) -> dict[str, Any]:
        return dict(self.config) | {"world_size": self.world_size, "link": (self.link_rate, self.link_delay_ms)}


def setting_of(row: Mapping[str, Any], tuned: Iterable[str] = TUNED, across_training: bool = False) -> Setting:
    """Everything that must be equal for two rows to be compared: all settings that affect training but seed, arm and
    tuning; ``across_training``: nor what moves the weights."""
    return Settings(tuned, across_training).of(row)


class Settings:
    """`setting_of` for many rows: rows that say the same have one `Setting`, which is made once.

    Rows of one program have the same names of settings, and most settings are those of some other row, so what is done
    for every row is one text of its values."""

    def __init__(self, tuned: Iterable[str], across_training: bool) -> None:
        self._ignored = {"seed", *NAMED, *tuned, *(TRAINING if across_training else ())}
        self._compared: dict[tuple[Any, ...], list[str]] = {}  # names, by all names that a row has
        self._made: dict[tuple[Any, ...], Setting] = {}

    def of(self, row: Mapping[str, Any]) -> Setting:
        """What must be equal for another row to be compared with this one."""
        config = row["config"]
        values = {name: config[name] for name in self._names(row) if not is_as_before(name, config[name])}
        link = row.get("link_rate_asked"), row.get("link_delay_ms") or 0.0
        key = row["world_size"], *link, dumped(values)
        if key not in self._made:
            texts = tuple((name, canonical(value)) for name, value in values.items())
            self._made[key] = Setting(row["world_size"], *link, texts)
        return self._made[key]

    def _names(self, row: Mapping[str, Any]) -> list[str]:
        """The settings that must be equal, sorted."""
        config, said = row["config"], row.get("side_settings")
        has_adapters = config.get("lora_rank") is not None  # rows from before there were adapters have none
        own = None if said is None else tuple(name for name in said if isinstance(name, str))
        key = tuple(config), tuple(arm_settings(row)), own, has_adapters
        if key not in self._compared:
            left_out = {*self._ignored, *arm_settings(row), *side_settings(row), *(() if has_adapters else _ADAPTERS)}
            self._compared[key] = sorted(name for name in config if name not in left_out)
        return self._compared[key]


def _rate(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:g} Gbit/s" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:g} Mbit/s"
