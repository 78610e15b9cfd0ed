"""Matrices with scales of rows and columns as numba kernels: the reference's bytes, but for the order of sums."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.lines_reference import LARGEST, inverse, line_bytes, line_scales
from comm_compress.kernels.numba_tools import Array, compiled, over_blocks

__all__ = ["add_lines", "column_energies", "line_bytes", "line_scales", "quantise_lines", "row_energies"]

TOGETHER = 64  # rows whose squares are added up before those of others: the same sums on any number of threads
LANES = 16


def row_energies(x: Tensor) -> Tensor:
    """As `lines_reference.row_energies`."""
    found = torch.empty(x.shape[0], dtype=torch.float64)
    over_blocks(_row_energies, x.shape[0], x.shape[1], x.numpy(), found.numpy())
    return found


def column_energies(x: Tensor, rows: Tensor) -> Tensor:
    """As `lines_reference.column_energies`."""
    a, b = x.shape
    parts = torch.zeros(math.ceil(a / TOGETHER), b, dtype=torch.float64)
    over_blocks(_column_energies, len(parts), TOGETHER * b, x.numpy(), inverse(rows).double().numpy(), parts.numpy())
    return parts.sum(0).div_(a)


def quantise_lines(x: Tensor, rows: Tensor, columns: Tensor, dead_zone: float, codes: Tensor) -> None:
    """As `lines_reference.quantise_lines`."""
    scales = (rows, inverse(rows), columns, inverse(columns))
    arrays = (x.numpy(), *(scale.numpy() for scale in scales), np.float32(1 - dead_zone), codes.numpy())
    over_blocks(_quantise, x.shape[0], x.shape[1], *arrays)


def add_lines(codes: Tensor, rows: Tensor, columns: Tensor, out: Tensor) -> None:
    """As `lines_reference.add_lines`."""
    over_blocks(_add, *codes.shape, codes.numpy(), rows.numpy(), columns.numpy(), out.numpy())


@compiled
def _row_energies(first: int, last: int, x: Array, found: Array) -> None:
    width = x.shape[1]
    whole = width - width % LANES
    lanes = np.empty(LANES, np.float64)
    for i in range(first, last):
        row = x[i]
        lanes[:] = 0.0
        for j in range(0, whole, LANES):
            for lane in range(LANES):
                value = np.float64(row[j + lane])
                lanes[lane] += value * value
        total = 0.0
        for j in range(whole, width):
            value = np.float64(row[j])
            total += value * value
        for lane in range(LANES):
            total += lanes[lane]
        found[i] = total / width


@compiled
def _column_energies(first: int, last: int, x: Array, inverses: Array, parts: Array) -> None:
    for part in range(first, last):
        sums = parts[part]
        for i in range(part * TOGETHER, min((part + 1) * TOGETHER, x.shape[0])):
            row, factor = x[i], inverses[i]
            for j in range(row.size):
                value = np.float64(row[j]) * factor
                sums[j] += value * value


@compiled
def _quantise(
    first: int,
    last: int,
    x: Array,
    rows: Array,
    row_inverses: Array,
    columns: Array,
    column_inverses: Array,
    offset: np.float32,
    codes: Array,
) -> None:
    most = np.float32(LARGEST)
    for i in range(first, last):
        row, out, scale, factor = x[i], codes[i], rows[i], row_inverses[i]
        for j in range(row.size):
            t = row[j] * factor * column_inverses[j]
            code = np.copysign(min(np.floor(abs(t) + offset), most), t)
            out[j] = np.int8(code)
            row[j] -= code * columns[j] * scale


@compiled
def _add(first: int, last: int, codes: Array, rows: Array, columns: Array, out: Array) -> None:
    for i in range(first, last):
        row, sums, scale = codes[i], out[i], rows[i]
        for j in range(row.size):
            sums[j] += np.float32(row[j]) * columns[j] * scale
