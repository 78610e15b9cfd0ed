"""Matrices as small integers times a scale of their row and one of their column: definitions in torch operations.

    x[i, j] ~ codes[i, j] * rows[i] * columns[j]

Scales are a byte each: quarters of an octave below the largest, which is a float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny
NOTHING = 255  # a line that is zero, or 2^64 times smaller than the largest
LARGEST = 127  # magnitude of a code

FACTORS = torch.tensor([*(2.0 ** (-code / 4) for code in range(NOTHING)), 0.0])
"""float32 ``[256]``: what a line's byte stands for."""

EDGES = torch.tensor([2.0 ** (-(code + 0.5) / 2) for code in reversed(range(NOTHING))], dtype=torch.float64)
"""float64 ``[255]``, ascending: shares of the largest mean square at which bytes change."""


def line_bytes(energies: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 ``[k]`` for the mean squares of k lines (float64), and the root of the largest as a float32 scalar.

    The scalar is 0 where it would be less than the smallest normal number, and NaN unless all is finite; then the
    bytes mean nothing.
    """
    largest = energies.amax()
    peak = largest.sqrt().float()
    peak = torch.where(torch.isfinite(peak), torch.where(peak >= TINY, peak, 0), torch.nan)
    shares = energies / torch.where(peak > 0, largest, 1)
    above = torch.searchsorted(EDGES.to(shares.device), shares, right=True)
    found = torch.where(peak > 0, NOTHING - above, NOTHING).to(torch.uint8)
    return found, peak


def line_scales(codes: Tensor, peak: Tensor) -> Tensor:
    """float32 ``[k]``: the scales that bytes stand for. 0: the line is zero."""
    scales = FACTORS.to(codes.device)[codes.int()] * peak
    return torch.where(scales < TINY, 0, scales)


def row_energies(x: Tensor) -> Tensor:
    """float64 ``[a]``: the mean square of each row of ``x`` float32 ``[a, b]``, summed in no defined order."""
    return x.double().square().mean(1)


def column_energies(x: Tensor, rows: Tensor) -> Tensor:
    """float64 ``[b]``: the same of each column, once rows are divided by their scales ``rows`` ``[a]``."""
    return (x.double() * inverse(rows).double()[:, None]).square().mean(0)


def inverse(scales: Tensor) -> Tensor:
    """1 / scale, and 0 for 0."""
    return torch.where(scales > 0, 1 / scales, 0)


def quantise_lines(x: Tensor, rows: Tensor, columns: Tensor, dead_zone: float, codes: Tensor) -> None:
    """Write ``codes`` int8 ``[a, b]`` of finite ``x`` float32 ``[a, b]``, and leave in ``x`` what they lose.

    With t = x / (rows columns), a code's magnitude is floor(|t| + 1 - dead_zone), 127 at most.
    """
    t = x * inverse(rows)[:, None] * inverse(columns)
    codes.copy_((t.abs() + (1 - dead_zone)).floor_().clamp_(max=LARGEST).copysign_(t))
    x -= codes * columns * rows[:, None]


def add_lines(codes: Tensor, rows: Tensor, columns: Tensor, out: Tensor) -> None:
    """Add what ``codes`` stand for to ``out`` float32 ``[a, b]``."""
    out += codes * columns * rows[:, None]
