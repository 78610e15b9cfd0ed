"""Memory that a kernel needs while it runs, from whoever calls it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Scratch = Callable[[str, tuple[int, ...], torch.dtype, torch.device], Tensor]
"""Gives uninitialised memory for a name, a shape, a dtype and a device: `fresh`, or a `State`'s ``scratch``."""


def fresh(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory of its own, whatever its name."""
    return torch.empty(shape, dtype=dtype, device=device)


def apart(scratch: Scratch, whose: str) -> Scratch:
    """The memory of ``scratch`` under names that begin with ``whose``, so that nobody else uses them."""
    return lambda name, *what: scratch(f"{whose} {name}", *what)
