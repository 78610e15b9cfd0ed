"""Ranks with gradients to project, a step of theirs, and its outcome."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from comm_compress.core.segments import Segment
from comm_compress.core.state import State
from comm_compress.drive import simulate


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def step(compressor: Any, inputs: list[Tensor], states: list[State]) -> simulate.Outcome:
    """One more collective on virtual ranks, begun as the FSDP hook begins it; with the bytes."""
    for rows, state in zip(inputs, states, strict=True):
        state.begin(torch.isfinite(rows).all())
    return simulate.lockstep([compressor.reduce_scatter(x, s) for x, s in zip(inputs, states, strict=True)])


def ranks(world: int, segments: tuple[Segment, ...] = ()) -> list[State]:
    """States before their first collective."""
    return [State("unit", rank, world, 0, segments) for rank in range(world)]


def total(outcome: simulate.Outcome) -> Tensor:
    """All ranks' totals, ``[W, n]``."""
    return torch.stack([result.total for result in outcome.results])


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())
