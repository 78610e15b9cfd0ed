"""Short names for settings that stand beside each other: what each has that most of the others have not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from analysis.rows.comparing.settings import Setting
from fsdp_lab.settings.user_errors import printable

MOST = "as most"
_PATHS = {"model_dir": "model", "data_path": "data", "target_dir": "draft of"}
_CONSEQUENCES = {"threads", "vocab_size"}
"""What follows from another setting: the threads a rank from the number of ranks, the ids from the model."""


def told_apart(settings: Sequence[Setting]) -> list[str]:
    """A name for each setting, such as ``max_steps 400`` or ``data code, 4 ranks``; `MOST` for one that is as most are.

    Two settings that differ have different names, unless they differ in what follows from something else."""
    values = [_values(setting) for setting in settings]
    names = sorted({name for some in values for name in some} - _CONSEQUENCES)
    common = {name: Counter(some.get(name, "null") for some in values).most_common(1)[0][0] for name in names}
    return [_name({name: some.get(name, "null") for name in names}, common) for some in values]


def _values(setting: Setting) -> dict[str, str]:
    ranks = {"world_size": str(setting.world_size)}
    return {**dict(setting.config), **ranks, "link": json.dumps([setting.link_rate, setting.link_delay_ms])}


def _name(mine: dict[str, str], common: dict[str, str]) -> str:
    unlike = {name: json.loads(text) for name, text in mine.items() if text != common[name]}
    unlike.pop("virtual_ranks", None) if "world_size" in unlike else None
    if "model" in unlike and "model_dir" in unlike:  # a preset and a folder: one of them is none
        unlike.pop("model" if unlike["model"] is None else "model_dir")
    return printable(", ".join(_said(name, value) for name, value in unlike.items())) or MOST


def _said(name: str, value: Any) -> str:
    if name in _PATHS:
        file = "embedded" if value is None and name == "data_path" else PurePosixPath(str(value)).name
        return f"{_PATHS[name]} {file.removesuffix('.gz').removesuffix('.jsonl')}"
    if name == "world_size":
        return f"{value} rank{'s' * (value > 1)}"
    if name == "link":
        rate, delay = value
        limit = "no limit" if rate is None else f"{rate / 1e6:g} Mbit/s"
        return f"{limit}, {delay:g} ms" if delay else limit
    return f"{name} {value if isinstance(value, str) else json.dumps(value)}"
