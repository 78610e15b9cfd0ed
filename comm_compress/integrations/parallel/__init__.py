"""Activations of tensor and sequence parallelism: `Activations` says what is compressed, a `Place` exchanges them.

`ColwiseParallel`, `RowwiseParallel` and `PrepareModuleInput` are styles for torch's `parallelize_module`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from comm_compress.integrations.parallel.activations import Activations
from comm_compress.integrations.parallel.place import Place

if TYPE_CHECKING:
    from comm_compress.integrations.parallel.styles import ColwiseParallel, PrepareModuleInput, RowwiseParallel

__all__ = ["Activations", "ColwiseParallel", "Place", "PrepareModuleInput", "RowwiseParallel"]
_STYLES = {"ColwiseParallel", "PrepareModuleInput", "RowwiseParallel"}  # DTensor takes a second to import


def __getattr__(name: str) -> Any:
    if name not in _STYLES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.styles"), name)
