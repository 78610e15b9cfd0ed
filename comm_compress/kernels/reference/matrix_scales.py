"""Matrices as small integers times a scale of their row and one of their column: definitions in torch operations.

    x[i, j] ~ codes[i, j] * rows[i] * columns[j]

The matrices lie one after another in a vector (`Lines`), and so do their scales. Scales of columns are followed by
ones, for matrices whose columns have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from comm_compress.kernels.common.matrix_scales import EDGES, FACTORS, NOTHING, TINY, Lines

LARGEST = 127  # magnitude of a code


def line_bytes(energies: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 ``[k]`` for the mean squares of k lines (float64), and the root of each matrix's largest, float32.

    ``lengths`` int64: the lines of each matrix. A root is 0 where it would be less than the smallest normal
    number, and NaN unless all of the matrix is finite; then its bytes mean nothing.
    """
    matrix = torch.arange(lengths.numel(), device=lengths.device).repeat_interleave(
        lengths, output_size=energies.numel()
    )
    largest = energies.new_zeros(lengths.numel()).scatter_reduce_(0, matrix, energies, "amax")
    peaks = largest.sqrt().float()
    peaks = torch.where(torch.isfinite(peaks), torch.where(peaks >= TINY, peaks, 0), math.nan)
    # the square of 0 or NaN compares as nothing
    shares = energies / torch.where(peaks > 0, largest, math.inf)[matrix]
    above = torch.searchsorted(EDGES.to(shares.device), shares, right=True)
    return (NOTHING - above).to(torch.uint8), peaks


def line_scales(codes: Tensor, lengths: Tensor, peaks: Tensor) -> Tensor:
    """float32 ``[k]``: the scales that bytes stand for. 0: the line is zero; NaN or infinite: nobody knows."""
    of_lines = peaks.repeat_interleave(lengths, output_size=codes.numel())
    scales = FACTORS.to(codes.device)[codes.int()] * of_lines
    return torch.where(scales < TINY, 0, scales)


def row_energies(x: Tensor, lines: Lines) -> Tensor:
    """float64 ``[rows]``: the mean square of each row, of ``x`` float32 ``[n]``, summed in no defined order."""
    found = [m.double().square().mean(1) for (m,) in _matrices(lines, x)]
    return torch.cat([x.new_empty(0, dtype=torch.float64), *found])


def column_energies(x: Tensor, rows: Tensor, lines: Lines) -> Tensor:
    """float64 ``[columns]``: the same of each column that has a scale, once rows are divided by theirs."""
    scales, found = torch.split_with_sizes(rows, [s.a for s in lines.shapes]), [x.new_empty(0, dtype=torch.float64)]
    for (m,), shape, scale in zip(_matrices(lines, x), lines.shapes, scales, strict=True):
        if shape.columns:
            found.append((m.double() * _inverse(scale).double()[:, None]).square().mean(0))
    return torch.cat(found)


def quantise_lines(x: Tensor, rows: Tensor, columns: Tensor, dead_zone: float, codes: Tensor, lines: Lines) -> None:
    """Write ``codes`` int8 ``[n]`` of ``x`` float32 ``[n]``, and leave in ``x`` what they lose.

    With t = x / (rows columns), a code's magnitude is floor(|t| + 1 - dead_zone), 127 at most. Of a row whose scale is
    not finite, all is lost: codes 0, and NaN in ``x``.
    """
    for (m, c), row, column in zip(_matrices(lines, x, codes), *_scales(lines, rows, columns), strict=True):
        t = m * _inverse(row) * _inverse(column)
        known = torch.isfinite(row)
        c.copy_(torch.where(known, (t.abs() + (1 - dead_zone)).floor_().clamp_(max=LARGEST).copysign_(t), 0))
        m.copy_(torch.where(known, m - c * column * row, torch.nan))


def add_lines(codes: Tensor, rows: Tensor, columns: Tensor, out: Tensor, lines: Lines) -> None:
    """Add what ``codes`` stand for to ``out`` float32 ``[n]``."""
    for (c, m), row, column in zip(_matrices(lines, codes, out), *_scales(lines, rows, columns), strict=True):
        m += c * column * row


def _matrices(lines: Lines, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Each as views of the vectors."""
    sizes = [s.a * s.b for s in lines.shapes]
    for shape, *parts in zip(lines.shapes, *(torch.split_with_sizes(v, sizes) for v in vectors), strict=True):
        yield tuple(part.view(shape.a, shape.b) for part in parts)


def _scales(lines: Lines, rows: Tensor, columns: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Of each matrix: its rows' ``[a, 1]``, its columns' ``[b]``."""
    own, ones = columns[: lines.num_columns], columns[lines.num_columns :]
    some = iter(torch.split_with_sizes(own, [s.b for s in lines.shapes if s.columns]))
    of_columns = [next(some) if s.columns else ones[: s.b] for s in lines.shapes]
    return [part[:, None] for part in torch.split_with_sizes(rows, [s.a for s in lines.shapes])], of_columns


def _inverse(scales: Tensor) -> Tensor:
    """1 / scale, and 0 for 0."""
    return torch.where(scales > 0, 1 / scales, 0)
