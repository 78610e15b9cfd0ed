"""Operators that cannot be had, found before any rank starts; torch is imported only to ask whether there is a GPU."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from fsdp_lab.settings.groups import ModelConfig
from fsdp_lab.settings.models.presets import family
from fsdp_lab.settings.operators import OPERATORS, Facts, named
from fsdp_lab.settings.operators.choose import refusals

_HALF = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}


def about_operators(model: ModelConfig) -> list[str]:
    """A complaint for each operator that was named and cannot be had here, or not together with another one.

    A model of unknown family has none: whoever builds it says what is wrong with it.
    """
    asked, kind = named(model), family(model)
    if not asked or kind is None:
        return []
    device = _device() if any(_depends_on_the_device(name, choice) for name, choice in asked.items()) else None
    dtype = _HALF.get(model.mixed_precision) or {"cuda": "bf16", "cpu": "fp32"}.get(str(device))
    return refusals(model, Facts(kind, device, dtype, _torch_version()))


def _depends_on_the_device(name: str, choice: str) -> bool:
    known = OPERATORS[name].choices.get(choice)  # None: a word
    return known is not None and bool(known.only_cuda or known.half_on or known.only_fp32)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _torch_version() -> tuple[int, int]:
    try:
        major, minor = re.findall(r"\d+", version("torch"))[:2]
    except PackageNotFoundError:  # the ranks say so
        return (99, 0)
    return int(major), int(minor)
