"""Matrices with scales of rows and columns: the definition in torch operations."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from comm_compress.kernels.elements.random import reference as random
from comm_compress.kernels.quantisers.matrix_scales.matrices import EDGES, FACTORS, NOTHING, TINY, Matrices, Quantiser
from comm_compress.kernels.tools.scratch import Scratch

if TYPE_CHECKING:
    from comm_compress.kernels.quantisers.matrix_scales.interface import MatrixScaleKernels

LARGEST = 127  # magnitude of a code


def add_noise(x: Tensor, sizes: Tensor, key: tuple[int, int], matrices: Matrices) -> None:
    steps = sizes.repeat_interleave(matrices.lengths, output_size=x.numel())
    noise = random.uniform(key, x.numel(), x.device).sub_(0.5).mul_(steps)
    x.copy_(torch.where(steps > 0, x + noise, x))


def encode_scales(mean_squares: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    matrix = torch.arange(lengths.numel(), device=lengths.device).repeat_interleave(
        lengths, output_size=mean_squares.numel()
    )
    largest = mean_squares.new_zeros(lengths.numel()).scatter_reduce_(0, matrix, mean_squares, "amax")
    peaks = largest.sqrt().float()
    peaks = torch.where(torch.isfinite(peaks), torch.where(peaks >= TINY, peaks, 0), math.nan)
    # a matrix of zeros, or one that is not finite, has shares of 0 or NaN
    shares = mean_squares / torch.where(peaks > 0, largest, math.inf)[matrix]
    above = torch.searchsorted(EDGES.to(shares.device), shares, right=True)
    return (NOTHING - above).to(torch.uint8), peaks


def decode_scales(codes: Tensor, lengths: Tensor, peaks: Tensor) -> Tensor:
    largest = peaks.repeat_interleave(lengths, output_size=codes.numel())
    scales = FACTORS.to(codes.device)[codes.int()] * largest
    return torch.where(scales < TINY, 0, scales)


def row_mean_squares(x: Tensor, matrices: Matrices) -> Tensor:
    means = [m.double().square().mean(1) for (m,) in _each(matrices, x)]
    return torch.cat([x.new_empty(0, dtype=torch.float64), *means])


def change_mean_squares(x: Tensor, old: Tensor, matrices: Matrices) -> Tensor:
    return row_mean_squares(x - old, matrices)


def column_mean_squares(x: Tensor, rows: Tensor, matrices: Matrices) -> Tensor:
    scales, means = torch.split_with_sizes(rows, [s.a for s in matrices.shapes]), [x.new_empty(0, dtype=torch.float64)]
    for (m,), shape, scale in zip(_each(matrices, x), matrices.shapes, scales, strict=True):
        if shape.columns:
            means.append((m.double() * _inverse(scale).double()[:, None]).square().mean(0))
    return torch.cat(means)


def line_mean_squares(rows: Tensor, matrices: Matrices) -> Tensor:
    return line_mean_squares_with(sys.modules[__name__], rows, matrices)


def line_mean_squares_with(topic: MatrixScaleKernels, rows: Tensor, matrices: Matrices) -> Tensor:
    """Lines' mean squares by the steps of ``topic``."""
    means = rows.new_empty(rows.shape[0], matrices.num_lines, dtype=torch.float64)
    ones = rows.new_ones(matrices.num_rows)
    for row, out in zip(rows, means, strict=True):
        of_rows = topic.row_mean_squares(row, matrices).split_with_sizes([s.a for s in matrices.shapes])
        of_columns = topic.column_mean_squares(row, ones, matrices)
        each = of_columns.split_with_sizes([s.b * s.columns for s in matrices.shapes])
        lines = [c if s.columns else r for s, r, c in zip(matrices.shapes, of_rows, each, strict=True)]
        torch.cat([of_columns[:0], *lines], out=out)
    return means


def quantise(
    x: Tensor,
    rows: Tensor,
    columns: Tensor,
    dead_zone: float,
    codes: Tensor,
    matrices: Matrices,
    keep: bool = True,
) -> None:
    for (m, c), row, column in zip(_each(matrices, x, codes), *_scales(matrices, rows, columns), strict=True):
        t = m * _inverse(row) * _inverse(column)
        known = torch.isfinite(row)
        c.copy_(torch.where(known, (t.abs() + (1 - dead_zone)).floor_().clamp_(max=LARGEST).copysign_(t), 0))
        if keep:
            m.copy_(torch.where(known, m - c * column * row, torch.nan))


def add_decoded(codes: Tensor, rows: Tensor, columns: Tensor, out: Tensor, matrices: Matrices) -> None:
    for (c, m), row, column in zip(_each(matrices, codes, out), *_scales(matrices, rows, columns), strict=True):
        m += c * column * row


def encode(
    x: Tensor,
    matrices: Matrices,
    quantiser: Quantiser,
    codes: Tensor,
    octets: Tensor,
    peaks: Tensor,
    beside: Tensor | None = None,
    most: Tensor | None = None,
) -> None:
    encode_with(sys.modules[__name__], x, matrices, quantiser, codes, octets, peaks, beside, most)


def encode_change(
    x: Tensor,
    old: Tensor,
    matrices: Matrices,
    quantiser: Quantiser,
    codes: Tensor,
    octets: Tensor,
    peaks: Tensor,
    scratch: Scratch,
    most: Tensor | None = None,
) -> bool:
    return encode_change_with(sys.modules[__name__], x, old, matrices, quantiser, codes, octets, peaks, scratch, most)


def add(codes: Tensor, octets: Tensor, peaks: Tensor, out: Tensor, matrices: Matrices) -> None:
    add_with(sys.modules[__name__], codes, octets, peaks, out, matrices)


def encode_with(
    kernels: MatrixScaleKernels,
    x: Tensor,
    matrices: Matrices,
    quantiser: Quantiser,
    codes: Tensor,
    octets: Tensor,
    peaks: Tensor,
    beside: Tensor | None,
    most: Tensor | None,
) -> None:
    """`encode` step by step, each by one implementation."""
    count, (of_rows, of_columns) = matrices.heights.numel(), _split(octets, matrices)
    means = quantiser.own * kernels.row_mean_squares(x, matrices)
    if beside is not None:
        others = quantiser.beside * kernels.row_mean_squares(beside, matrices)
        means = torch.maximum(others if most is None else torch.minimum(others, most), means)
    made, largest = kernels.encode_scales(means, matrices.heights)
    of_rows.copy_(made)
    peaks[:count], peaks[count:] = largest * quantiser.step, 0
    if matrices.num_columns:
        rows = kernels.decode_scales(of_rows, matrices.heights, largest)
        columns = kernels.column_mean_squares(x, rows, matrices)
        made, peaks[count:] = kernels.encode_scales(columns, matrices.widths)
        of_columns.copy_(made)
    scales = _decoded(kernels, octets, peaks, matrices)
    kernels.quantise(x, *scales, quantiser.dead_zone, codes, matrices, quantiser.keep)


def encode_change_with(
    kernels: MatrixScaleKernels,
    x: Tensor,
    old: Tensor,
    matrices: Matrices,
    quantiser: Quantiser,
    codes: Tensor,
    octets: Tensor,
    peaks: Tensor,
    scratch: Scratch,
    most: Tensor | None,
) -> bool:
    """`encode_change` step by step, each by one implementation."""
    assert not matrices.num_columns
    change = torch.sub(x, old, out=scratch("change", tuple(x.shape), torch.float32, x.device))
    encode_with(kernels, change, matrices, quantiser._replace(keep=False), codes, octets, peaks, x, most)
    return bool(torch.isfinite(peaks).all())


def add_with(
    kernels: MatrixScaleKernels, codes: Tensor, octets: Tensor, peaks: Tensor, out: Tensor, matrices: Matrices
) -> None:
    """`add` step by step, each by one implementation."""
    kernels.add_decoded(codes, *_decoded(kernels, octets, peaks, matrices), out, matrices)


def _split(octets: Tensor, matrices: Matrices) -> tuple[Tensor, Tensor]:
    return octets[: matrices.num_rows], octets[matrices.num_rows :]


def _decoded(kernels: MatrixScaleKernels, octets: Tensor, peaks: Tensor, matrices: Matrices) -> tuple[Tensor, Tensor]:
    """The scales of rows, and those of columns with ones after them."""
    count, (of_rows, of_columns) = matrices.heights.numel(), _split(octets, matrices)
    rows = kernels.decode_scales(of_rows, matrices.heights, peaks[:count])
    columns = kernels.decode_scales(of_columns, matrices.widths, peaks[count:])
    return rows, torch.cat([columns, matrices.ones])


def _each(matrices: Matrices, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Each matrix, as views of the vectors."""
    sizes = [s.a * s.b for s in matrices.shapes]
    for shape, *parts in zip(matrices.shapes, *(torch.split_with_sizes(v, sizes) for v in vectors), strict=True):
        yield tuple(part.view(shape.a, shape.b) for part in parts)


def _scales(matrices: Matrices, rows: Tensor, columns: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The scales of each matrix: those of its rows ``[a, 1]`` and those of its columns ``[b]``."""
    own, ones = columns[: matrices.num_columns], columns[matrices.num_columns :]
    some = iter(torch.split_with_sizes(own, [s.b for s in matrices.shapes if s.columns]))
    of_columns = [next(some) if s.columns else ones[: s.b] for s in matrices.shapes]
    return [part[:, None] for part in torch.split_with_sizes(rows, [s.a for s in matrices.shapes])], of_columns


def _inverse(scales: Tensor) -> Tensor:
    """1 / scale, and 0 for 0."""
    return torch.where(scales > 0, 1 / scales, 0)
