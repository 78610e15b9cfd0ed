"""Mean squares of the rows and columns of matrices, in numba: the sums are of float64, in the order of `reference`."""

from __future__ import annotations

import numpy as np

from comm_compress.kernels.quantisers.matrix_scales.matrices import TOGETHER
from comm_compress.kernels.quantisers.matrix_scales.scale_codes import inverse
from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.vectors.vectors import LANES, doubles, load, splat, sum_of_pairs


@compiled
def row_mean_squares(first: int, last: int, x: Array, rows: Array, means: Array) -> None:
    """Mean squares of rows ``first`` to ``last`` of all matrices; ``rows``: where each starts, and its width."""
    for i in range(first, last):
        start, width, _ = rows[i]
        squares = doubles(splat(np.float32(0)))
        for j in range(start, start + width, LANES):
            wide = doubles(load(x, j, start + width))
            squares = squares + wide * wide
        means[i] = sum_of_pairs(squares) / width


@compiled
def change_mean_squares(first: int, last: int, x: Array, old: Array, rows: Array, means: Array) -> None:
    """As `row_mean_squares`, of the difference of two vectors, which is never written."""
    for i in range(first, last):
        start, width, _ = rows[i]
        squares = doubles(splat(np.float32(0)))
        for j in range(start, start + width, LANES):
            change = doubles(load(x, j, start + width) - load(old, j, start + width))
            squares = squares + change * change
        means[i] = sum_of_pairs(squares) / width


@compiled
def line_mean_squares(vectors: Array, shapes: Array, means: Array) -> None:
    """The sums of `row_mean_squares` and of `column_sums` and `column_means`, in their order."""
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
def column_sums(first: int, last: int, x: Array, scales: Array, rows: Array, parts: Array, sums: Array) -> None:
    """Sums of squares of columns, over the rows of parts ``first`` to ``last``, each divided by its scale."""
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
            of_a, of_b = np.float64(inverse(scales[i])), np.float64(inverse(scales[i + 1]))
            of_c, of_d = np.float64(inverse(scales[i + 2])), np.float64(inverse(scales[i + 3]))
            out = sums[place : place + width]
            for j in range(width):
                e, f, g, h = of_a * a[j], of_b * b[j], of_c * c[j], of_d * d[j]
                out[j] = out[j] + e * e + f * f + g * g + h * h
        for i in range(together, bottom):
            start, width, _ = rows[i]
            row, factor, out = x[start : start + width], np.float64(inverse(scales[i])), sums[place : place + width]
            for j in range(width):
                value = np.float64(row[j]) * factor
                out[j] += value * value


@compiled
def column_means(sums: Array, groups: Array, means: Array) -> None:
    """Mean squares of columns: their parts are added in order, and divided by the height."""
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
