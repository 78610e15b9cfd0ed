"""The flags that name compression methods: every spelling becomes a name and settings for each direction.

    --comm_compress topk --comm_config_json '{"ratio": 0.01}'
    --comm_compress "topk ratio=0.01"
    --comm_compress "int4 hadamard + delta"                       # gradients + parameters
    --comm_compress "bf16 + bf16, reduced in bf16, prefetch 0"    # what a figure's legend says
    --comm_compress "none, activations int8 + int4 hadamard"      # forward + backward, where the model is divided
    --comm_compress "none, every 30 diloco int4 hadamard"       # what replicas send after 30 local steps
    --comm_compress "int8, optimizer int8"                       # what Muon gathers, too
    --system sdp4bit                                              # a published system: as "int4 hadamard + delta"

all become values of the settings of `CommConfig`, so that rows of one arm are equal however it was typed. Which methods
exist, and which settings they take, is not known here: `fsdp_lab.settings.refusing.early` checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import comm_compress as cc
from fsdp_lab.settings.reading.system_flag import SETTINGS, joined
from fsdp_lab.settings.systems import table

FURTHER = {
    "reduced_in": "comm_dtype",
    "prefetch": "fsdp_prefetch",
    "reshard": "fsdp_reshard",
    "activations": "activation",
    "activation_gradients": "activation_grad",
    "outer": "outer",
    "outer_every": "outer_every",
    "outer_method": "outer_compress",
    "outer_gather": "outer_gather",
    "optimizer": "optimizer_compress",
}
"""The other fields of a label (`comm_compress.labels.Arm`), and the flag of each."""
LABELS = (
    *("activation", "activation_grad", "outer_compress", "outer_gather", "optimizer_compress", "optimizer_gather"),
    *("replica_compress", "outer_gradient_compress"),
)
"""Flags whose value stays one label, settings of the method included."""


def text_of(method: Any) -> Any:
    """The label of a method given as a mapping; any other value unchanged. ValueError: the mapping names no method."""
    return cc.labels.label(*cc.labels.named(method)) if isinstance(method, Mapping) else method


def spelled_out(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """``values``, the settings of `CommConfig` that were given, with every label taken apart; and complaints.

    A system's settings stand in place of its name. A value that is neither text nor a mapping stays unchanged: the
    check of its type refuses it.
    """
    separate, complaints = _taken_apart(values)
    name = separate.get("system")
    if not isinstance(name, str):
        return separate, complaints
    del separate["system"]
    if name == table.NONE:
        return separate, complaints
    try:
        recipe = table.recipe(name)
    except ValueError as error:
        return separate, [*complaints, f"system: {error}"]
    theirs, _ = _taken_apart(recipe.settings)
    together, contradictions = joined(name, theirs, separate)
    return together, complaints + contradictions


def _taken_apart(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """``values`` without labels, but those that stay one text, and complaints about what cannot be read."""
    complaints: list[str] = []
    separate = dict(values)
    for flag in LABELS:  # one text, however it is written
        if flag in separate:
            try:
                separate[flag] = _canonical(separate[flag])
            except ValueError as error:
                complaints.append(f"{flag}: {error}")
    # parameters first: what the gradients' label says of them is compared with that
    for flag, read in (("param_compress", _one), ("comm_compress", cc.labels.parse_arm)):
        own = SETTINGS[flag]
        try:
            if isinstance(separate.get(own), Mapping):
                separate[own] = cc.labels.spelled_out(separate[own])
            separate |= _said_by(flag, read, separate)
        except ValueError as error:
            complaints.append(f"{flag}: {error}")
    return separate, complaints


def _canonical(method: Any) -> Any:
    text = text_of(method)
    return cc.labels.label(*cc.labels.parse_label(text)) if isinstance(text, str) else text


def _one(text: str) -> cc.labels.Arm:
    return cc.labels.Arm(cc.labels.parse_label(text))


def _said_by(flag: str, read: Callable[[str], cc.labels.Arm], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the text of ``flag`` gives. ValueError: it cannot be read, or another flag contradicts it."""
    own = SETTINGS[flag]
    text, beside = text_of(given.get(flag)), given.get(own, {})
    if not isinstance(text, str) or not isinstance(beside, Mapping):
        return {}
    arm = read(text)
    name, settings = cc.labels.with_settings(arm.gradients, beside)
    said = {flag: name}
    if settings or own in given:
        said[own] = cc.labels.spelled_out(settings)
    others: dict[str, Any] = {}
    if arm.parameters is not None:
        others |= {"param_compress": arm.parameters.name, "param_config_json": arm.parameters.settings}
    others |= {key: getattr(arm, field) for field, key in FURTHER.items() if getattr(arm, field) is not None}
    others = {key: value if key in LABELS else cc.labels.spelled_out(value) for key, value in others.items()}
    for key, value in others.items():
        if key in given and given[key] != value:
            raise ValueError(f"{text!r} says {_shown(value)} for {key}, which is given as {_shown(given[key])}, too")
    return said | others


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
