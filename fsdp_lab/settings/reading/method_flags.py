"""comm_compress and its companions, in whatever way they are said, as a name and settings for each direction.

    --comm_compress topk --comm_config_json '{"ratio": 0.01}'
    --comm_compress "topk ratio=0.01"
    --comm_compress "int4 hadamard + delta"                       # gradients + parameters
    --comm_compress "bf16 + bf16, reduced in bf16, prefetch 0"    # what a figure's legend says

all end as values of the settings of `CommConfig`, so that rows of one arm are equal however it was typed. Which methods
there are, and what settings they take, is not known here: `fsdp_lab.settings.refusing.early` asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import comm_compress as cc

SETTINGS = {"comm_compress": "comm_config_json", "param_compress": "param_config_json"}
"""The flag of each direction's method, and that of the method's settings."""
FURTHER = {"reduced_in": "comm_dtype", "prefetch": "fsdp_prefetch", "reshard": "fsdp_reshard"}
"""What else a label can say (`comm_compress.labels.Arm`), and its flag."""


def text_of(method: Any) -> Any:
    """The label of a method given as a mapping; anything else as it is. ValueError: the mapping names no method."""
    return cc.labels.label(*cc.labels.named(method)) if isinstance(method, Mapping) else method


def spelled_out(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """``values``, those settings of `CommConfig` that were said, with every label taken apart; and complaints.

    What is no text or no mapping stays, for others to refuse.
    """
    complaints: list[str] = []
    found = dict(values)
    # parameters first: what the gradients' label says of them is compared with that
    for flag, read in (("param_compress", _one), ("comm_compress", cc.labels.parse_arm)):
        own = SETTINGS[flag]
        try:
            if isinstance(found.get(own), Mapping):
                found[own] = cc.labels.spelled_out(found[own])
            found |= _said_by(flag, read, found)
        except ValueError as error:
            complaints.append(f"{flag}: {error}")
    return found, complaints


def _one(text: str) -> cc.labels.Arm:
    return cc.labels.Arm(cc.labels.parse_label(text))


def _said_by(flag: str, read: Callable[[str], cc.labels.Arm], found: Mapping[str, Any]) -> dict[str, Any]:
    """What the text of ``flag`` sets. ValueError: it cannot be read, or other flags say otherwise."""
    own = SETTINGS[flag]
    text, beside = text_of(found.get(flag)), found.get(own, {})
    if not isinstance(text, str) or not isinstance(beside, Mapping):
        return {}
    arm = read(text)
    name, settings = cc.labels.with_settings(arm.gradients, beside)
    said = {flag: name}
    if settings or own in found:
        said[own] = cc.labels.spelled_out(settings)
    others: dict[str, Any] = {}
    if arm.parameters is not None:
        others |= {"param_compress": arm.parameters.name, "param_config_json": arm.parameters.settings}
    others |= {key: getattr(arm, part) for part, key in FURTHER.items() if getattr(arm, part) is not None}
    others = {key: cc.labels.spelled_out(value) for key, value in others.items()}
    for key, value in others.items():
        if key in found and found[key] != value:
            raise ValueError(f"{text!r} says {_shown(value)} for {key}, which is given as {_shown(found[key])}, too")
    return said | others


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
