"""What a checkpoint holds, and the names of its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from fsdp_lab.checkpoint.files.tensor_parts import placed
from fsdp_lab.models.model import Placed

WEIGHTS = "weights"
"""The folder in a checkpoint for the tensors of all ranks."""


@dataclass
class Content:
    """What a checkpoint holds.

    ``tensors``: by name, DTensors (each rank has a part) and tensors that are alike on all ranks; they can be loaded on
    another number of ranks. ``own``: this process's alone, nested dicts and lists of plain values and tensors.
    ``pieces``: which of the tensors are a piece of a whole one, which other ranks have the rest of.
    """

    tensors: dict[str, Tensor]
    own: dict[str, Any]
    pieces: dict[str, Placed] = field(default_factory=dict)

    @property
    def placed(self) -> dict[str, Tensor]:
        """The tensors as torch's DCP is to see them: pieces as parts of the whole."""
        return placed(self.tensors, self.pieces)

    def not_finite(self) -> list[str]:
        """Names of tensors with a NaN or an infinity in this process's part."""
        named = [*self.tensors.items(), *_tensors_in(self.own.get("compressors"), "compressors")]
        return [name for name, tensor in named if tensor.is_floating_point() and not _is_finite(tensor)]


def own_name(process: int) -> str:
    """The file in a checkpoint for what a process has of its own."""
    return f"rank-{process}.pt"


def _is_finite(tensor: Tensor) -> bool:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return bool(torch.isfinite(local).all())


def _tensors_in(tree: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _tensors_in(value, f"{name}/{key}")
