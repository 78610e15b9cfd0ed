"""What `experiments.fidelity.capture` saved, read again."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from comm_compress.core.segments import Segment
from experiments.fidelity.capture import GRADIENTS


class Unit(NamedTuple):
    """One FSDP unit over the captured steps.

    ``steps[t][r]`` is what rank r gave: gradients ``[W, n]``, or parameters ``[n]``.
    """

    name: str
    segments: tuple[Segment, ...]
    steps: list[list[Tensor]]


def load(folder: Path, kind: str = GRADIENTS) -> list[Unit]:
    """What `capture` saved of one kind. Raises ValueError when there is nothing."""
    files = sorted((folder / kind).glob("*.pt"))
    if not files:
        raise ValueError(f"{folder}: no captured {kind}; run fsdp-lab fidelity capture --out {folder}")
    tensors: dict[str, dict[tuple[int, int], Tensor]] = {}
    segments: dict[str, tuple[Segment, ...]] = {}
    for file in files:
        saved = torch.load(file, weights_only=True)
        tensors.setdefault(saved["unit"], {})[saved["step"], saved["rank"]] = saved["rows"]
        segments[saved["unit"]] = tuple(Segment(n, tuple(shape), a, b) for n, shape, a, b in saved["segments"])
    units = []
    for name, rows in tensors.items():
        steps, ranks = sorted({t for t, _ in rows}), sorted({r for _, r in rows})
        units.append(Unit(name, segments[name], [[rows[t, r] for r in ranks] for t in steps]))
    return units
