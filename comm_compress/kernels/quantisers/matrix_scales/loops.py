"""A vector's elements as whole numbers, and back, in numba: by given scales, or a whole vector in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from comm_compress.kernels.elements.random.cpu import hash_run, unit_number
from comm_compress.kernels.quantisers.matrix_scales.line_means import column_means, column_sums, row_mean_squares
from comm_compress.kernels.quantisers.matrix_scales.reference import LARGEST
from comm_compress.kernels.quantisers.matrix_scales.scale_codes import decode_scales, encode_scales, inverse, inverses
from comm_compress.kernels.tools.compiled import Array, compiled, inlined
from comm_compress.kernels.tools.vectors.vectors import LANES, doubles, load, splat, sum_of_pairs

PIECE = 1024  # elements: 4 KB of random words


@compiled
def add_noise(first: int, last: int, x: Array, sizes: Array, low: np.uint32, high: np.uint32, rows: Array) -> None:
    """Uniform noise of a width of its own for every row, drawn by the place of the element.

    Random words are drawn by the piece, to the cache: a loop that draws each where it is added takes twice as long.
    """
    words = np.empty(PIECE, np.uint32)
    for i in range(first, last):
        start, width, _ = rows[i]
        size = sizes[i]
        if size > 0:
            for place in range(start, start + width, PIECE):
                row = x[place : min(place + PIECE, start + width)]
                hash_run(np.uint32(place), low, high, words[: row.size])
                for j in range(row.size):
                    row[j] += (unit_number(words[j]) - np.float32(0.5)) * size


@compiled
def quantise(
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
    """Rows ``first`` to ``last`` in whole numbers; where ``keep``, what they leave out stays in ``x``."""
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
        factor = inverse(scale)
        for j in range(width):
            t = row[j] * factor * factors[j]
            code = np.copysign(min(np.floor(abs(t) + offset), most), t)
            out[j] = np.int8(code)
            if keep:
                row[j] -= code * scales[j] * scale


@compiled
def add(first: int, last: int, codes: Array, row_scales: Array, column_scales: Array, sums: Array, rows: Array) -> None:
    """Adds to rows ``first`` to ``last`` of ``sums`` what the codes stand for."""
    for i in range(first, last):
        start, width, column = rows[i]
        row, out, scale = codes[start : start + width], sums[start : start + width], row_scales[i]
        scales = column_scales[column : column + width]
        for j in range(width):
            out[j] += np.float32(row[j]) * scales[j] * scale


@compiled
def encode(
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
    """The scales of a whole vector and its codes: mean squares, their bytes, and what these bytes decode to."""
    num_rows, count = rows.shape[0], heights.size
    of_rows, of_columns, row_peaks, column_peaks = octets[:num_rows], octets[num_rows:], peaks[:count], peaks[count:]
    means, scales = np.empty(num_rows, np.float64), np.empty(num_rows, np.float32)
    row_mean_squares(0, num_rows, x, rows, means)
    for i in range(num_rows):
        means[i] *= own
    if beside.size:
        others = np.empty(num_rows, np.float64)
        row_mean_squares(0, num_rows, beside, rows, others)
        for i in range(num_rows):
            means[i] = _larger(means[i], _limited(other * others[i], most, i))
    encode_scales(means, heights, limits, of_rows, row_peaks)
    columns = np.ones(of_columns.size + ones, np.float32)
    column_peaks[:] = 0
    if of_columns.size:
        decode_scales(of_rows, heights, row_peaks, factors, scales)
        _column_scales(x, scales, rows, parts, sums, widths, limits, of_columns, column_peaks)
        decode_scales(of_columns, widths, column_peaks, factors, columns)
    for i in range(count):
        row_peaks[i] *= step
    decode_scales(of_rows, heights, row_peaks, factors, scales)
    quantise(0, num_rows, x, scales, columns, inverses(columns), offset, keep, codes, rows)


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
    column_sums(0, parts.shape[0], x, scales, rows, parts, sums)
    column_means(sums, groups, means)
    encode_scales(means, widths, limits, codes, peaks)


@compiled
def add_all(
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
    """Adds to ``out`` what a whole vector's codes and bytes of scales stand for."""
    num_rows, count = rows.shape[0], heights.size
    scales, columns = np.empty(num_rows, np.float32), np.ones(octets.size - num_rows + ones, np.float32)
    decode_scales(octets[:num_rows], heights, peaks[:count], factors, scales)
    decode_scales(octets[num_rows:], widths, peaks[count:], factors, columns)
    add(0, num_rows, codes, scales, columns, out, rows)


@inlined
def _limited(value: Any, most: Any, i: Any) -> Any:
    """No more than the row's limit, where there are any: NaN, if the value is."""
    return most[i] if most.size and value > most[i] else value


@inlined
def _larger(a: Any, b: Any) -> Any:
    """The larger number: NaN, if one is."""
    return b if b > a or np.isnan(b) else a


@compiled
def encode_change(
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
    encode_scales(means, heights, limits, octets, peaks)
    peaks[count:] = 0
    for i in range(count):
        if not np.isfinite(peaks[i]):
            return False
        peaks[i] *= step
    decode_scales(octets, heights, peaks, factors, scales)
    for i in range(num_rows):
        start, width, _ = rows[i]
        row, before, out = x[start : start + width], old[start : start + width], codes[start : start + width]
        factor = inverse(scales[i])
        for j in range(width):
            t = (row[j] - before[j]) * factor
            out[j] = np.int8(np.copysign(min(np.floor(abs(t) + offset), np.float32(LARGEST)), t))
    return True
