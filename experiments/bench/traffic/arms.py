"""The two methods of an arm that a benchmark is told, such as ``int8 + delta``."""

from __future__ import annotations

from typing import NamedTuple

import comm_compress as cc
from comm_compress.labels import parse_arm


class Methods(NamedTuple):
    """What carries gradients and what carries parameters; None: stock FSDP2."""

    gradients: cc.Compressor | None
    parameters: cc.Compressor | None


def methods_of(label: str) -> Methods:
    """Build an arm's methods. ValueError when it says none that there is, or one that cannot carry that."""
    arm = parse_arm(label)
    built = [
        None if said is None or said.name == "none" else cc.make(*said) for said in (arm.gradients, arm.parameters)
    ]
    for method, fits, what in zip(built, ("for_gradients", "for_parameters"), Methods._fields, strict=True):
        if method is not None and not getattr(method.traits, fits):
            raise ValueError(f"--arms: {label!r}: {method.name} does not carry {what}")
    return Methods(*built)
