"""Ascending positions as unary steps and lower bits, in plain torch operations: what Elias-Fano and Rice codes share.

Position i becomes a number: ``position - i``, which never decreases (Elias-Fano), or the gap to the position before,
``position_i - position_(i-1) - 1`` (Rice). Its lower ``low`` bits go into one string, as they are. Of its upper part
the other string shows the way from the number before (Elias-Fano) or from zero (Rice): so many zeros, then a one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels.reference.bitmap import mark_bits, marked_bits
from comm_compress.kernels.reference.bits import pack, unpack


def encode_positions(positions: Tensor, low: int, gaps: bool, upper: Tensor, lower: Tensor) -> None:
    """``positions`` int32 ``[R, k]``, k > 0; both strings uint8 ``[R, ...]``, just long enough, written."""
    order = _order(positions)
    numbers = _gaps(positions) if gaps else positions - order
    steps = numbers >> low
    mark_bits((steps.cumsum(1, dtype=torch.int32) if gaps else steps) + order, upper)
    if low:
        pack(numbers & ((1 << low) - 1), low, lower)


def decode_positions(upper: Tensor, lower: Tensor, low: int, gaps: bool, k: int) -> Tensor:
    """int32 ``[R, k]``: the positions that `encode_positions` was given."""
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
    """For each ``low`` below ``widths`` the sum of all gaps' upper parts; ``positions`` int32 ``[1, k]``."""
    gaps = _gaps(positions)
    steps: list[int] = torch.stack([(gaps >> low).sum() for low in range(widths)]).tolist()
    return steps


def _gaps(positions: Tensor) -> Tensor:
    return torch.diff(positions, prepend=positions.new_full((positions.shape[0], 1), -1)) - 1


def _order(positions: Tensor) -> Tensor:
    """0, 1, 2, ... along each row."""
    return torch.arange(positions.shape[1], device=positions.device, dtype=torch.int32)
