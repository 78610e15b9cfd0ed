"""Ascending positions as unary steps and lower bits: the definition in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels.packing.bitmap.reference import mark_bits, marked_bits
from comm_compress.kernels.packing.bits.reference import pack, unpack


def encode(positions: Tensor, low: int, gaps: bool, upper: Tensor, lower: Tensor) -> None:
    order = _order(positions)
    numbers = _gaps(positions) if gaps else positions - order
    steps = numbers >> low
    mark_bits((steps.cumsum(1, dtype=torch.int32) if gaps else steps) + order, upper)
    if low:
        pack(numbers & ((1 << low) - 1), low, lower)


def decode(upper: Tensor, lower: Tensor, low: int, gaps: bool, k: int) -> Tensor:
    places = marked_bits(upper, k)
    order = _order(places)
    steps = places - order
    if gaps:
        steps = torch.diff(steps, prepend=steps.new_zeros(steps.shape[0], 1))
    numbers = steps << low
    if low:
        numbers = numbers + unpack(lower, low, k)
    return (numbers.cumsum(1, dtype=torch.int32) if gaps else numbers) + order


def gap_steps(positions: Tensor, widths: int) -> list[int]:
    gaps = _gaps(positions)
    steps: list[int] = torch.stack([(gaps >> low).sum() for low in range(widths)]).tolist()
    return steps


def _gaps(positions: Tensor) -> Tensor:
    return torch.diff(positions, prepend=positions.new_full((positions.shape[0], 1), -1)) - 1


def _order(positions: Tensor) -> Tensor:
    """0, 1, 2, ... along each row."""
    return torch.arange(positions.shape[1], device=positions.device, dtype=torch.int32)
