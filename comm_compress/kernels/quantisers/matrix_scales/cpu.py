"""Matrices with scales of rows and columns as numba kernels.

One call does all matrices of a vector: they are many, and most of them are small.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.elements.random.cpu import uniform_number
from comm_compress.kernels.quantisers.matrix_scales.matrices import (
    EDGES,
    FACTORS,
    NOTHING,
    TOGETHER,
    Matrices,
    Quantiser,
)
from comm_compress.kernels.quantisers.matrix_scales.reference import (
    LARGEST,
    add_with,
    encode_change_with,
    encode_with,
    line_mean_squares_with,
)
from comm_compress.kernels.tools.compiled import TINY, Array, compiled, inlined
from comm_compress.kernels.tools.scratch import Scratch
from comm_compress.kernels.tools.threads import over_blocks, shared_out
from comm_compress.kernels.tools.vectors.vectors import LANES, doubles, load, splat, sum_of_pairs

EXPONENT, BIAS = 52, 1023  # of a float64
LIMITS, SCALES = EDGES.numpy(), FACTORS.numpy()
NO_ROW: Array = np.empty(0, np.float32)
NO_LIMIT: Array = np.empty(0, np.float64)


def encode_scales(mean_squares: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    codes, peaks = torch.empty_like(mean_squares, dtype=torch.uint8), torch.empty(lengths.numel())
    _encode_scales(mean_squares.numpy(), lengths.numpy(), LIMITS, codes.numpy(), peaks.numpy())
    return codes, peaks


def decode_scales(codes: Tensor, lengths: Tensor, peaks: Tensor) -> Tensor:
    scales = torch.empty_like(codes, dtype=torch.float32)
    _decode_scales(codes.numpy(), lengths.numpy(), peaks.numpy(), SCALES, scales.numpy())
    return scales


def row_mean_squares(x: Tensor, matrices: Matrices) -> Tensor:
    means = torch.empty(matrices.num_rows, dtype=torch.float64)
    arrays = (x.numpy(), matrices.tables.rows, means.numpy())
    over_blocks(_row_mean_squares, matrices.num_rows, _width(x, matrices), *arrays)
    return means


def change_mean_squares(x: Tensor, old: Tensor, matrices: Matrices) -> Tensor:
    means = torch.empty(matrices.num_rows, dtype=torch.float64)
    arrays = (x.numpy(), old.numpy(), matrices.tables.rows, means.numpy())
    over_blocks(_change_mean_squares, matrices.num_rows, _width(x, matrices), *arrays)
    return means


def add_noise(x: Tensor, sizes: Tensor, key: tuple[int, int], matrices: Matrices) -> None:
    arrays = (x.numpy(), sizes.numpy(), np.uint32(key[0]), np.uint32(key[1]), matrices.tables.rows)
    over_blocks(_add_noise, matrices.num_rows, _width(x, matrices), *arrays)


def column_mean_squares(x: Tensor, rows: Tensor, matrices: Matrices) -> Tensor:
    tables = matrices.tables
    means = torch.empty(matrices.num_columns, dtype=torch.float64)
    sums = np.zeros(int((tables.sums[:, 1] * tables.sums[:, 2]).sum()))
    each = x.numel() // max(len(tables.parts), 1)
    arrays = (x.numpy(), rows.numpy(), tables.rows, tables.parts, sums)
    over_blocks(_column_sums, len(tables.parts), each, *arrays)
    _column_means(sums, tables.sums, means.numpy())
    return means


def line_mean_squares(rows: Tensor, matrices: Matrices) -> Tensor:
    if shared_out(rows.shape[1]):
        return line_mean_squares_with(sys.modules[__name__], rows, matrices)
    means = torch.empty(rows.shape[0], matrices.num_lines, dtype=torch.float64)
    _line_mean_squares(rows.numpy(), matrices.tables.shapes, means.numpy())
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
    scales = (rows.numpy(), columns.numpy(), _inverses(columns.numpy()))
    arrays = (x.numpy(), *scales, np.float32(1 - dead_zone), keep, codes.numpy(), matrices.tables.rows)
    over_blocks(_quantise, matrices.num_rows, _width(x, matrices), *arrays)


def add_decoded(codes: Tensor, rows: Tensor, columns: Tensor, out: Tensor, matrices: Matrices) -> None:
    arrays = (codes.numpy(), rows.numpy(), columns.numpy(), out.numpy(), matrices.tables.rows)
    over_blocks(_add, matrices.num_rows, _width(codes, matrices), *arrays)


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
    _encode(
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
    return bool(_encode_change(x.numpy(), old.numpy(), limit, *weights, *tables, *written))


def add(codes: Tensor, octets: Tensor, peaks: Tensor, out: Tensor, matrices: Matrices) -> None:
    if shared_out(out.numel()):
        add_with(sys.modules[__name__], codes, octets, peaks, out, matrices)
        return
    tables = matrices.tables
    lengths = (tables.rows, tables.heights, tables.widths, tables.ones)
    _add_all(codes.numpy(), octets.numpy(), peaks.numpy(), out.numpy(), *lengths, SCALES)


def _width(x: Tensor, matrices: Matrices) -> int:
    """The width of a row, on average."""
    return x.numel() // max(matrices.num_rows, 1)


@inlined
def _inverse(scale: Any) -> Any:
    return np.float32(1.0) / scale if scale > 0 else np.float32(0.0)


@compiled
def _inverses(scales: Array) -> Array:
    inverses = np.empty_like(scales)
    for i in range(scales.size):
        inverses[i] = _inverse(scales[i])
    return inverses


@compiled
def _encode_scales(mean_squares: Array, lengths: Array, limits: Array, codes: Array, peaks: Array) -> None:
    end = 0
    for matrix in range(lengths.size):
        begin, end = end, end + lengths[matrix]
        largest = np.float64(0.0)
        for i in range(begin, end):
            if mean_squares[i] > largest or np.isnan(mean_squares[i]):  # nothing is larger than NaN
                largest = mean_squares[i]
        peak = np.float32(np.sqrt(largest))
        if not np.isfinite(peak):
            peak = np.float32(np.nan)
        elif peak < TINY:
            peak = np.float32(0.0)
        peaks[matrix] = peak
        whole = largest if peak > 0 else np.inf
        for i in range(begin, end):
            codes[i] = NOTHING - _limits_reached(mean_squares[i] / whole, limits)


@compiled
def _limits_reached(share: np.float64, limits: Array) -> int:
    """How many are no more than the share. There are two in each octave: at 2^(e + 1/4) and at 2^(e + 3/4)."""
    if np.isnan(share):
        return NOTHING
    octave = int(np.float64(share).view(np.int64) >> EXPONENT) - BIAS
    reached = min(max(2 * octave + NOTHING, 0), NOTHING)
    while reached < NOTHING and share >= limits[reached]:
        reached += 1
    return reached


@compiled
def _decode_scales(codes: Array, lengths: Array, peaks: Array, factors: Array, scales: Array) -> None:
    end = 0
    for matrix in range(lengths.size):
        begin, end = end, end + lengths[matrix]
        for i in range(begin, end):
            scale = factors[codes[i]] * peaks[matrix]
            scales[i] = np.float32(0.0) if scale < TINY else scale


@compiled
def _row_mean_squares(first: int, last: int, x: Array, rows: Array, means: Array) -> None:
    for i in range(first, last):
        start, width, _ = rows[i]
        squares = doubles(splat(np.float32(0)))
        for j in range(start, start + width, LANES):
            wide = doubles(load(x, j, start + width))
            squares = squares + wide * wide
        means[i] = sum_of_pairs(squares) / width


@compiled
def _change_mean_squares(first: int, last: int, x: Array, old: Array, rows: Array, means: Array) -> None:
    for i in range(first, last):
        start, width, _ = rows[i]
        squares = doubles(splat(np.float32(0)))
        for j in range(start, start + width, LANES):
            change = doubles(load(x, j, start + width) - load(old, j, start + width))
            squares = squares + change * change
        means[i] = sum_of_pairs(squares) / width


@compiled
def _add_noise(first: int, last: int, x: Array, sizes: Array, low: np.uint32, high: np.uint32, rows: Array) -> None:
    for i in range(first, last):
        start, width, _ = rows[i]
        if sizes[i] > 0:
            for j in range(start, start + width):
                x[j] += (uniform_number(np.uint32(j), low, high) - np.float32(0.5)) * sizes[i]


@compiled
def _line_mean_squares(vectors: Array, shapes: Array, means: Array) -> None:
    """The sums of `_row_mean_squares` and of `_column_sums` and `_column_means`, in their order."""
    for vector in range(vectors.shape[0]):
        x, out, place = vectors[vector], means[vector], 0
        for matrix in range(shapes.shape[0]):
            start, a, b, columns = shapes[matrix]
            if not columns:
                for i in range(a):
                    begin, squares = start + i * b, doubles(splat(np.float32(0)))
                    for j in range(begin, begin + b, LANES):
                        wide = doubles(load(x, j, begin + b))
                        squares = squares + wide * wide
                    out[place + i] = sum_of_pairs(squares) / b
                place += a
                continue
            whole = out[place : place + b]
            whole[:] = 0.0
            for top in range(0, a, TOGETHER):
                some = np.zeros(b, np.float64)
                for i in range(top, min(top + TOGETHER, a)):
                    row = x[start + i * b : start + (i + 1) * b]
                    for j in range(b):
                        value = np.float64(row[j])
                        some[j] += value * value
                for j in range(b):
                    whole[j] += some[j]
            for j in range(b):
                whole[j] /= a
            place += b


@compiled
def _column_sums(first: int, last: int, x: Array, scales: Array, rows: Array, parts: Array, sums: Array) -> None:
    for part in range(first, last):
        top, bottom, place = parts[part]
        together = top + (bottom - top) // 4 * 4
        for i in range(top, together, 4):
            # four rows at a time: their sums are loaded and stored once, and added up in the same order
            start, width, _ = rows[i]
            a, b, c, d = (
                x[start : start + width],
                x[start + width : start + 2 * width],
                x[start + 2 * width : start + 3 * width],
                x[start + 3 * width : start + 4 * width],
            )
            of_a, of_b = np.float64(_inverse(scales[i])), np.float64(_inverse(scales[i + 1]))
            of_c, of_d = np.float64(_inverse(scales[i + 2])), np.float64(_inverse(scales[i + 3]))
            out = sums[place : place + width]
            for j in range(width):
                e, f, g, h = of_a * a[j], of_b * b[j], of_c * c[j], of_d * d[j]
                out[j] = out[j] + e * e + f * f + g * g + h * h
        for i in range(together, bottom):
            start, width, _ = rows[i]
            row, factor, out = x[start : start + width], np.float64(_inverse(scales[i])), sums[place : place + width]
            for j in range(width):
                value = np.float64(row[j]) * factor
                out[j] += value * value


@compiled
def _column_means(sums: Array, groups: Array, means: Array) -> None:
    for g in range(groups.shape[0]):
        place, parts, width, column, height = groups[g]
        out = means[column : column + width]
        out[:] = 0.0
        for part in range(parts):
            some = sums[place + part * width : place + (part + 1) * width]
            for j in range(width):
                out[j] += some[j]
        for j in range(width):
            out[j] /= height


@compiled
def _quantise(
    first: int,
    last: int,
    x: Array,
    row_scales: Array,
    column_scales: Array,
    column_inverses: Array,
    offset: np.float32,
    keep: bool,
    codes: Array,
    rows: Array,
) -> None:
    most = np.float32(LARGEST)
    for i in range(first, last):
        start, width, column = rows[i]
        row, out, scale = x[start : start + width], codes[start : start + width], row_scales[i]
        scales, factors = column_scales[column : column + width], column_inverses[column : column + width]
        if not np.isfinite(scale):
            if keep:
                row[:] = np.nan
            out[:] = 0
            continue
        factor = _inverse(scale)
        for j in range(width):
            t = row[j] * factor * factors[j]
            code = np.copysign(min(np.floor(abs(t) + offset), most), t)
            out[j] = np.int8(code)
            if keep:
                row[j] -= code * scales[j] * scale


@compiled
def _add(
    first: int, last: int, codes: Array, row_scales: Array, column_scales: Array, sums: Array, rows: Array
) -> None:
    for i in range(first, last):
        start, width, column = rows[i]
        row, out, scale = codes[start : start + width], sums[start : start + width], row_scales[i]
        scales = column_scales[column : column + width]
        for j in range(width):
            out[j] += np.float32(row[j]) * scales[j] * scale


@compiled
def _encode(
    x: Array,
    beside: Array,
    most: Array,
    own: float,
    other: float,
    step: np.float32,
    offset: np.float32,
    keep: bool,
    rows: Array,
    parts: Array,
    sums: Array,
    heights: Array,
    widths: Array,
    ones: int,
    limits: Array,
    factors: Array,
    codes: Array,
    octets: Array,
    peaks: Array,
) -> None:
    num_rows, count = rows.shape[0], heights.size
    of_rows, of_columns, row_peaks, column_peaks = octets[:num_rows], octets[num_rows:], peaks[:count], peaks[count:]
    means, scales = np.empty(num_rows, np.float64), np.empty(num_rows, np.float32)
    _row_mean_squares(0, num_rows, x, rows, means)
    for i in range(num_rows):
        means[i] *= own
    if beside.size:
        others = np.empty(num_rows, np.float64)
        _row_mean_squares(0, num_rows, beside, rows, others)
        for i in range(num_rows):
            means[i] = _larger(means[i], _limited(other * others[i], most, i))
    _encode_scales(means, heights, limits, of_rows, row_peaks)
    columns = np.ones(of_columns.size + ones, np.float32)
    column_peaks[:] = 0
    if of_columns.size:
        _decode_scales(of_rows, heights, row_peaks, factors, scales)
        _column_scales(x, scales, rows, parts, sums, widths, limits, of_columns, column_peaks)
        _decode_scales(of_columns, widths, column_peaks, factors, columns)
    for i in range(count):
        row_peaks[i] *= step
    _decode_scales(of_rows, heights, row_peaks, factors, scales)
    _quantise(0, num_rows, x, scales, columns, _inverses(columns), offset, keep, codes, rows)


@compiled
def _column_scales(
    x: Array,
    scales: Array,
    rows: Array,
    parts: Array,
    groups: Array,
    widths: Array,
    limits: Array,
    codes: Array,
    peaks: Array,
) -> None:
    size = 0
    for g in range(groups.shape[0]):
        size += groups[g, 1] * groups[g, 2]
    sums, means = np.zeros(size, np.float64), np.empty(codes.size, np.float64)
    _column_sums(0, parts.shape[0], x, scales, rows, parts, sums)
    _column_means(sums, groups, means)
    _encode_scales(means, widths, limits, codes, peaks)


@compiled
def _add_all(
    codes: Array,
    octets: Array,
    peaks: Array,
    out: Array,
    rows: Array,
    heights: Array,
    widths: Array,
    ones: int,
    factors: Array,
) -> None:
    num_rows, count = rows.shape[0], heights.size
    scales, columns = np.empty(num_rows, np.float32), np.ones(octets.size - num_rows + ones, np.float32)
    _decode_scales(octets[:num_rows], heights, peaks[:count], factors, scales)
    _decode_scales(octets[num_rows:], widths, peaks[count:], factors, columns)
    _add(0, num_rows, codes, scales, columns, out, rows)


@inlined
def _limited(value: Any, most: Any, i: Any) -> Any:
    """No more than the row's limit, where there are any: NaN, if the value is."""
    return most[i] if most.size and value > most[i] else value


@inlined
def _larger(a: Any, b: Any) -> Any:
    """The larger number: NaN, if one is."""
    return b if b > a or np.isnan(b) else a


@compiled
def _encode_change(
    x: Array,
    old: Array,
    most: Array,
    own: float,
    other: float,
    step: np.float32,
    offset: np.float32,
    rows: Array,
    heights: Array,
    limits: Array,
    factors: Array,
    codes: Array,
    octets: Array,
    peaks: Array,
) -> bool:
    """In two passes over memory, and without memory for the change."""
    num_rows, count = rows.shape[0], heights.size
    means, scales = np.empty(num_rows, np.float64), np.empty(num_rows, np.float32)
    for i in range(num_rows):
        start, width, _ = rows[i]
        moved, whole = doubles(splat(np.float32(0))), doubles(splat(np.float32(0)))
        for j in range(start, start + width, LANES):
            value = load(x, j, start + width)
            change, wide = doubles(value - load(old, j, start + width)), doubles(value)
            moved, whole = moved + change * change, whole + wide * wide
        beside = _limited(other * (sum_of_pairs(whole) / width), most, i)
        means[i] = _larger(own * (sum_of_pairs(moved) / width), beside)
    _encode_scales(means, heights, limits, octets, peaks)
    peaks[count:] = 0
    for i in range(count):
        if not np.isfinite(peaks[i]):
            return False
        peaks[i] *= step
    _decode_scales(octets, heights, peaks, factors, scales)
    for i in range(num_rows):
        start, width, _ = rows[i]
        row, before, out = x[start : start + width], old[start : start + width], codes[start : start + width]
        factor = _inverse(scales[i])
        for j in range(width):
            t = (row[j] - before[j]) * factor
            out[j] = np.int8(np.copysign(min(np.floor(abs(t) + offset), np.float32(LARGEST)), t))
    return True
