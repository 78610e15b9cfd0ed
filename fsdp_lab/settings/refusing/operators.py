"""Operators that cannot be had, found before any rank starts; torch is imported only to ask whether there is a GPU."""

from __future__ import annotations

from fsdp_lab.settings.groups import ModelConfig
from fsdp_lab.settings.models.presets import family
from fsdp_lab.settings.operators import OPERATORS, Facts, named
from fsdp_lab.settings.operators.choose import refusals
from fsdp_lab.settings.refusing.here import device_here, torch_version

_HALF = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}


def about_operators(model: ModelConfig) -> list[str]:
    """A complaint for each operator that was named and cannot be had here, or not together with another one.

    A model of unknown family has none: whoever builds it says what is wrong with it.
    """
    asked, kind = named(model), family(model)
    if not asked or kind is None:
        return []
    device = device_here() if any(_depends_on_the_device(name, choice) for name, choice in asked.items()) else None
    dtype = _HALF.get(model.mixed_precision) or {"cuda": "bf16", "cpu": "fp32"}.get(str(device))
    return refusals(model, Facts(kind, device, dtype, torch_version()))


def _depends_on_the_device(name: str, choice: str) -> bool:
    known = OPERATORS[name].choices.get(choice)  # None: a word
    return known is not None and bool(known.only_cuda or known.half_on or known.only_fp32)
