"""Matrices with scales of rows and columns as numba kernels.

One call does all matrices of a vector: they are many, and most of them are small.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.quantisers.matrix_scales import line_means, loops, scale_codes
from comm_compress.kernels.quantisers.matrix_scales.matrices import EDGES, FACTORS, Matrices, Quantiser
from comm_compress.kernels.quantisers.matrix_scales.reference import (
    add_with,
    encode_change_with,
    encode_with,
    line_mean_squares_with,
)
from comm_compress.kernels.tools.compiled import Array
from comm_compress.kernels.tools.scratch import Scratch
from comm_compress.kernels.tools.threads import over_blocks, shared_out

LIMITS, SCALES = EDGES.numpy(), FACTORS.numpy()
NO_ROW: Array = np.empty(0, np.float32)
NO_LIMIT: Array = np.empty(0, np.float64)


def encode_scales(mean_squares: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    codes, peaks = torch.empty_like(mean_squares, dtype=torch.uint8), torch.empty(lengths.numel())
    scale_codes.encode_scales(mean_squares.numpy(), lengths.numpy(), LIMITS, codes.numpy(), peaks.numpy())
    return codes, peaks


def decode_scales(codes: Tensor, lengths: Tensor, peaks: Tensor) -> Tensor:
    scales = torch.empty_like(codes, dtype=torch.float32)
    scale_codes.decode_scales(codes.numpy(), lengths.numpy(), peaks.numpy(), SCALES, scales.numpy())
    return scales


def row_mean_squares(x: Tensor, matrices: Matrices) -> Tensor:
    means = torch.empty(matrices.num_rows, dtype=torch.float64)
    arrays = (x.numpy(), matrices.tables.rows, means.numpy())
    over_blocks(line_means.row_mean_squares, matrices.num_rows, _width(x, matrices), *arrays)
    return means


def change_mean_squares(x: Tensor, old: Tensor, matrices: Matrices) -> Tensor:
    means = torch.empty(matrices.num_rows, dtype=torch.float64)
    arrays = (x.numpy(), old.numpy(), matrices.tables.rows, means.numpy())
    over_blocks(line_means.change_mean_squares, matrices.num_rows, _width(x, matrices), *arrays)
    return means


def add_noise(x: Tensor, sizes: Tensor, key: tuple[int, int], matrices: Matrices) -> None:
    arrays = (x.numpy(), sizes.numpy(), np.uint32(key[0]), np.uint32(key[1]), matrices.tables.rows)
    over_blocks(loops.add_noise, matrices.num_rows, _width(x, matrices), *arrays)


def column_mean_squares(x: Tensor, rows: Tensor, matrices: Matrices) -> Tensor:
    tables = matrices.tables
    means = torch.empty(matrices.num_columns, dtype=torch.float64)
    sums = np.zeros(int((tables.sums[:, 1] * tables.sums[:, 2]).sum()))
    each = x.numel() // max(len(tables.parts), 1)
    arrays = (x.numpy(), rows.numpy(), tables.rows, tables.parts, sums)
    over_blocks(line_means.column_sums, len(tables.parts), each, *arrays)
    line_means.column_means(sums, tables.sums, means.numpy())
    return means


def line_mean_squares(rows: Tensor, matrices: Matrices) -> Tensor:
    if shared_out(rows.shape[1]):
        return line_mean_squares_with(sys.modules[__name__], rows, matrices)
    means = torch.empty(rows.shape[0], matrices.num_lines, dtype=torch.float64)
    line_means.line_mean_squares(rows.numpy(), matrices.tables.shapes, means.numpy())
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
    scales = (rows.numpy(), columns.numpy(), scale_codes.inverses(columns.numpy()))
    arrays = (x.numpy(), *scales, np.float32(1 - dead_zone), keep, codes.numpy(), matrices.tables.rows)
    over_blocks(loops.quantise, matrices.num_rows, _width(x, matrices), *arrays)


def add_decoded(codes: Tensor, rows: Tensor, columns: Tensor, out: Tensor, matrices: Matrices) -> None:
    arrays = (codes.numpy(), rows.numpy(), columns.numpy(), out.numpy(), matrices.tables.rows)
    over_blocks(loops.add, matrices.num_rows, _width(codes, matrices), *arrays)


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
    if shared_out(x.numel()):
        encode_with(sys.modules[__name__], x, matrices, quantiser, codes, octets, peaks, beside, most)
        return
    other, limit = NO_ROW if beside is None else beside.numpy(), NO_LIMIT if most is None else most.numpy()
    weights = (quantiser.own, quantiser.beside, np.float32(quantiser.step))
    rounding = np.float32(1 - quantiser.dead_zone), quantiser.keep
    out = (codes.numpy(), octets.numpy(), peaks.numpy())
    rows, parts, sums, heights, widths, ones, _ = matrices.tables
    loops.encode(
        x.numpy(), other, limit, *weights, *rounding, rows, parts, sums, heights, widths, ones, LIMITS, SCALES, *out
    )


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
    if shared_out(x.numel()):
        kernels = sys.modules[__name__]
        return encode_change_with(kernels, x, old, matrices, quantiser, codes, octets, peaks, scratch, most)
    assert not matrices.num_columns
    weights = quantiser.own, quantiser.beside, np.float32(quantiser.step), np.float32(1 - quantiser.dead_zone)
    tables = matrices.tables.rows, matrices.heights.numpy(), LIMITS, SCALES
    limit = NO_LIMIT if most is None else most.numpy()
    written = codes.numpy(), octets.numpy(), peaks.numpy()
    return bool(loops.encode_change(x.numpy(), old.numpy(), limit, *weights, *tables, *written))


def add(codes: Tensor, octets: Tensor, peaks: Tensor, out: Tensor, matrices: Matrices) -> None:
    if shared_out(out.numel()):
        add_with(sys.modules[__name__], codes, octets, peaks, out, matrices)
        return
    tables = matrices.tables
    lengths = (tables.rows, tables.heights, tables.widths, tables.ones)
    loops.add_all(codes.numpy(), octets.numpy(), peaks.numpy(), out.numpy(), *lengths, SCALES)


def _width(x: Tensor, matrices: Matrices) -> int:
    """The width of a row, on average."""
    return x.numel() // max(matrices.num_rows, 1)
