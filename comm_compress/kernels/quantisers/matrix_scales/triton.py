"""Matrices with scales of rows and columns as Triton kernels: each launch does all matrices of a vector.

A program has a row, or 64 rows of some columns, or the scales of a matrix. Sums of squares are in float64, in whatever
order: a scale is sent in quarters of an octave, which rounding does not change.
"""

from __future__ import annotations

import functools
import sys
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.elements.random.triton import as_fractions, hash_counter
from comm_compress.kernels.quantisers.matrix_scales import matrices as common, reference
from comm_compress.kernels.quantisers.matrix_scales.matrices import EDGES, FACTORS, Matrices, Quantiser
from comm_compress.kernels.quantisers.matrix_scales.reference import encode_change_with, line_mean_squares_with
from comm_compress.kernels.tools.scratch import Scratch
from comm_compress.kernels.tools.triton.launching import (
    INFINITE,
    MAGNITUDE,
    TILE,
    as_int32,
    launch,
    power_of_two,
    warps,
)

NOTHING, LARGEST = tl.constexpr(common.NOTHING), tl.constexpr(reference.LARGEST)
TINY = tl.constexpr(common.TINY)
SCALES = 1024  # scales of a matrix that one step of a program takes
COLUMNS, PARTS = 64, 16  # columns of a program, and sums of 64 rows that it adds up at once


def encode_scales(mean_squares: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    codes = torch.empty_like(mean_squares, dtype=torch.uint8)
    peaks = torch.empty(lengths.numel(), device=lengths.device)
    _encode_ranges(mean_squares, _ranges(lengths), 1.0, codes, peaks)
    return codes, peaks


def decode_scales(codes: Tensor, lengths: Tensor, peaks: Tensor) -> Tensor:
    return _decode_ranges(codes, _ranges(lengths), peaks)


def row_mean_squares(x: Tensor, matrices: Matrices) -> Tensor:
    return _means_of_rows(x, None, None, (1.0, 0.0), matrices)


def change_mean_squares(x: Tensor, old: Tensor, matrices: Matrices) -> Tensor:
    return row_mean_squares(x - old, matrices)


def add_noise(x: Tensor, sizes: Tensor, key: tuple[int, int], matrices: Matrices) -> None:
    low, high = (as_int32(word) for word in key)
    there = _placed(matrices)
    _over_rows(_add_noise, there, x, sizes, there.rows, low, high)


def column_mean_squares(x: Tensor, rows: Tensor, matrices: Matrices) -> Tensor:
    there = _placed(matrices)
    partial = torch.empty(there.num_sums, dtype=torch.float64, device=x.device)
    tiles = triton.cdiv(there.widest_summed, COLUMNS)
    launch(_sum_columns, (len(there.parts), tiles), x, rows, there.rows, there.parts, partial, TILE=COLUMNS)
    means = torch.empty(matrices.num_columns, dtype=torch.float64, device=x.device)
    launch(_mean_columns, (len(there.sums), tiles), partial, there.sums, means, PARTS=PARTS, TILE=COLUMNS)
    return means


def line_mean_squares(rows: Tensor, matrices: Matrices) -> Tensor:
    return line_mean_squares_with(sys.modules[__name__], rows, matrices)


def quantise(
    x: Tensor,
    rows: Tensor,
    columns: Tensor,
    dead_zone: float,
    codes: Tensor,
    matrices: Matrices,
    keep: bool = True,
) -> None:
    there = _placed(matrices)
    arguments = x, rows, columns, there.rows, codes, 1 - dead_zone, matrices.num_columns
    _over_rows(_quantise, there, *arguments, KEEP=keep)


def add_decoded(codes: Tensor, rows: Tensor, columns: Tensor, out: Tensor, matrices: Matrices) -> None:
    there = _placed(matrices)
    _over_rows(_add_decoded, there, codes, rows, columns, there.rows, out, matrices.num_columns)


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
    there, count, height = _placed(matrices), len(matrices.shapes), matrices.num_rows
    means = _means_of_rows(x, beside, most, (quantiser.own, quantiser.beside), matrices)
    unscaled, scales = torch.empty(height, device=x.device), torch.empty(len(octets), device=x.device)
    _encode_ranges(means, there.ranges[:count], quantiser.step, octets, peaks, unscaled, scales)
    peaks[count:].zero_()
    if matrices.num_columns:
        columns, ranges = column_mean_squares(x, unscaled, matrices), there.ranges_of_columns
        _encode_ranges(columns, ranges, 1.0, octets[height:], peaks[count:], None, scales[height:])
    quantise(x, scales, scales[height:], quantiser.dead_zone, codes, matrices, quantiser.keep)


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
    scales = _decode_ranges(octets, _placed(matrices).ranges, peaks)
    add_decoded(codes, scales, scales[matrices.num_rows :], out, matrices)


class _Placed(NamedTuple):
    """`Tables` in the GPU's memory, int64, and what a launch asks of them.

    ``ranges`` ``[2 * matrices, 2]``: the first scale and how many, of each matrix's rows, then of its columns, counted
    on from the last row's; ``ranges_of_columns`` ``[matrices, 2]``: the same, counted from the first column's.
    """

    rows: Tensor
    parts: Tensor
    sums: Tensor
    ranges: Tensor
    ranges_of_columns: Tensor
    num_sums: int
    widest: int
    widest_summed: int


@functools.lru_cache(maxsize=1024)  # as `matrices_of`
def _placed(matrices: Matrices) -> _Placed:
    tables, device = matrices.tables, matrices.heights.device
    rows, parts, sums = (torch.from_numpy(table).to(device) for table in (tables.rows, tables.parts, tables.sums))
    return _Placed(
        rows,
        parts,
        sums,
        _ranges(torch.cat([matrices.heights, matrices.widths])),
        _ranges(matrices.widths),
        int((tables.sums[:, 1] * tables.sums[:, 2]).sum()),
        max((s.b for s in matrices.shapes), default=0),
        max((s.b for s in matrices.shapes if s.columns), default=0),
    )


def _ranges(lengths: Tensor) -> Tensor:
    """The first scale of each matrix, and how many it has: int64 ``[matrices, 2]``."""
    return torch.stack([lengths.cumsum(0) - lengths, lengths], 1)


@functools.lru_cache(maxsize=64)
def _on(device: torch.device, table: str) -> Tensor:
    """`EDGES` or `FACTORS` in the GPU's memory."""
    return {"edges": EDGES, "factors": FACTORS}[table].to(device)


@functools.lru_cache(maxsize=64)
def _weights(weights: tuple[float, float], device: torch.device) -> Tensor:
    """In memory, because Triton takes a number for a float32."""
    return torch.tensor(weights, dtype=torch.float64, device=device)


def _means_of_rows(
    x: Tensor, beside: Tensor | None, most: Tensor | None, weights: tuple[float, float], matrices: Matrices
) -> Tensor:
    """The rows' mean squares times the first weight, or, if larger, those ``beside`` times the second: float64.

    The latter count up to ``most`` float64 ``[rows]``.
    """
    there = _placed(matrices)
    means = torch.empty(matrices.num_rows, dtype=torch.float64, device=x.device)
    _over_rows(_mean_rows, there, x, beside, most, _weights(weights, x.device), there.rows, means)
    return means


def _over_rows(
    kernel: triton.JITFunction, there: _Placed, *arguments: Tensor | float | None, **constants: bool
) -> None:
    """A program for each row of all matrices."""
    tile = min(TILE, max(power_of_two(there.widest), 32))
    launch(kernel, (len(there.rows),), *arguments, TILE=tile, num_warps=warps(tile), **constants)


def _encode_ranges(
    means: Tensor,
    ranges: Tensor,
    step: float,
    codes: Tensor,
    peaks: Tensor,
    unscaled: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    """Bytes of scales and the largest of each range, times ``step``; and what the bytes stand for, without and with."""
    tables = _on(means.device, "edges"), _on(means.device, "factors")
    launch(_encode_scales, (len(ranges),), means, ranges, *tables, step, codes, peaks, unscaled, scales, TILE=SCALES)


def _decode_ranges(codes: Tensor, ranges: Tensor, peaks: Tensor) -> Tensor:
    scales = torch.empty(codes.numel(), device=codes.device)
    launch(_decode_scales, (len(ranges),), codes, ranges, _on(codes.device, "factors"), peaks, scales, TILE=SCALES)
    return scales


@triton.jit
def _is_nan(x):
    return x != x


@triton.jit
def _inverse(scale):
    """1 / scale, and 0 for 0."""
    return tl.where(scale > 0, tl.div_rn(1.0, tl.where(scale > 0, scale, 1.0)), 0.0)


@triton.jit
def _scale(byte, peak, factors, mask):
    """float32: what the bytes of scales stand for, where the largest is ``peak``."""
    scale = tl.load(factors + byte, mask=mask, other=0) * peak
    return tl.where(scale < TINY, 0.0, scale)


@triton.jit
def _mean_rows(x, beside, most, weights, places, means, TILE: tl.constexpr):
    row = tl.program_id(0)
    begin, width = tl.load(places + 3 * row), tl.load(places + 3 * row + 1).to(tl.int32)
    squares = tl.zeros([TILE], tl.float64)
    others = tl.zeros([TILE], tl.float64)
    for first in range(0, width, TILE):
        j = first + tl.arange(0, TILE)
        value = tl.load(x + begin + j, mask=j < width, other=0).to(tl.float64)
        squares += value * value
        if beside is not None:
            other = tl.load(beside + begin + j, mask=j < width, other=0).to(tl.float64)
            others += other * other
    mean = tl.load(weights) * (tl.sum(squares, axis=0) / width.to(tl.float64))
    if beside is not None:
        other_mean = tl.load(weights + 1) * (tl.sum(others, axis=0) / width.to(tl.float64))
        if most is not None:
            limit = tl.load(most + row)
            other_mean = tl.where(other_mean > limit, limit, other_mean)
        # what is no number stays none
        mean = tl.where(_is_nan(mean) | (mean >= other_mean), mean, other_mean)
    tl.store(means + row, mean)


@triton.jit(do_not_specialize=["low", "high"])
def _add_noise(x, sizes, places, low, high, TILE: tl.constexpr):
    row = tl.program_id(0)
    size = tl.load(sizes + row)
    if size > 0:
        begin, width = tl.load(places + 3 * row), tl.load(places + 3 * row + 1).to(tl.int32)
        for first in range(0, width, TILE):
            j = first + tl.arange(0, TILE)
            noise = as_fractions(hash_counter((begin + j).to(tl.uint32), low, high)) - 0.5
            value = tl.load(x + begin + j, mask=j < width, other=0)
            tl.store(x + begin + j, value + noise * size, mask=j < width)


@triton.jit
def _sum_columns(x, scales, places, parts, partial, TILE: tl.constexpr):
    """The squares of some columns in the rows of a part, after rows were divided by their scales."""
    part = tl.program_id(0)
    first, last = tl.load(parts + 3 * part), tl.load(parts + 3 * part + 1)
    width = tl.load(places + 3 * first + 1).to(tl.int32)
    j = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros([TILE], tl.float64)
    for row in range(first, last):
        inverse = _inverse(tl.load(scales + row)).to(tl.float64)
        value = tl.load(x + tl.load(places + 3 * row) + j, mask=j < width, other=0).to(tl.float64) * inverse
        total += value * value
    tl.store(partial + tl.load(parts + 3 * part + 2) + j, total, mask=j < width)


@triton.jit
def _mean_columns(partial, sums, means, PARTS: tl.constexpr, TILE: tl.constexpr):
    """The parts' sums of some columns of a matrix, added up and divided by its height."""
    sums += 5 * tl.program_id(0)
    partial += tl.load(sums)
    number, width = tl.load(sums + 1).to(tl.int32), tl.load(sums + 2).to(tl.int32)
    j = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros([PARTS, TILE], tl.float64)
    for first in range(0, number, PARTS):
        part = first + tl.arange(0, PARTS)
        places = part[:, None].to(tl.int64) * width + j[None, :]
        total += tl.load(partial + places, mask=(part < number)[:, None] & (j < width)[None, :], other=0)
    mean = tl.sum(total, axis=0) / tl.load(sums + 4).to(tl.float64)
    tl.store(means + tl.load(sums + 3) + j, mean, mask=j < width)


@triton.jit
def _encode_scales(means, ranges, edges, factors, step, codes, peaks, unscaled, scales, TILE: tl.constexpr):
    """Bytes of the scales of a matrix's rows, or of its columns."""
    matrix = tl.program_id(0)
    begin, number = tl.load(ranges + 2 * matrix), tl.load(ranges + 2 * matrix + 1).to(tl.int32)
    highest = tl.zeros([TILE], tl.float64)
    unknown = tl.zeros([TILE], tl.int32)
    for first in range(0, number, TILE):
        k = first + tl.arange(0, TILE)
        mean = tl.load(means + begin + k, mask=k < number, other=0)
        unknown |= _is_nan(mean).to(tl.int32)
        highest = tl.where(mean > highest, mean, highest)
    largest = tl.max(highest, axis=0)
    root = tl.sqrt(largest).to(tl.float32)
    finite = ((root.to(tl.int32, bitcast=True) & MAGNITUDE) < INFINITE) & (tl.max(unknown, axis=0) == 0)
    peak = tl.where(finite, tl.where(root >= TINY, root, 0.0), float("nan"))
    tl.store(peaks + matrix, peak * step)
    # of a matrix of zeros, or of one that is not finite, all shares are 0 or no numbers
    whole = tl.where(peak > 0, largest, float("inf"))
    for first in range(0, number, TILE):
        k = first + tl.arange(0, TILE)
        share = tl.load(means + begin + k, mask=k < number, other=0) / whole
        above = tl.zeros([TILE], tl.int32)  # how many edges are no larger
        for step_size in tl.static_range(8):
            half = 128 >> step_size
            above += tl.where(tl.load(edges + above + (half - 1)) > share, 0, half)
        byte = NOTHING - above
        tl.store(codes + begin + k, byte.to(tl.uint8), mask=k < number)
        if unscaled is not None:
            tl.store(unscaled + begin + k, _scale(byte, peak, factors, k < number), mask=k < number)
        if scales is not None:
            tl.store(scales + begin + k, _scale(byte, peak * step, factors, k < number), mask=k < number)


@triton.jit
def _decode_scales(codes, ranges, factors, peaks, scales, TILE: tl.constexpr):
    matrix = tl.program_id(0)
    begin, number = tl.load(ranges + 2 * matrix), tl.load(ranges + 2 * matrix + 1).to(tl.int32)
    peak = tl.load(peaks + matrix)
    for first in range(0, number, TILE):
        k = first + tl.arange(0, TILE)
        byte = tl.load(codes + begin + k, mask=k < number, other=0).to(tl.int32)
        tl.store(scales + begin + k, _scale(byte, peak, factors, k < number), mask=k < number)


@triton.jit
def _quantise(x, rows, columns, places, codes, up, num_columns, KEEP: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0)
    begin, width = tl.load(places + 3 * row), tl.load(places + 3 * row + 1).to(tl.int32)
    column = tl.load(places + 3 * row + 2)
    scaled, of_row = column < num_columns, tl.load(rows + row)
    known = (of_row.to(tl.int32, bitcast=True) & MAGNITUDE) < INFINITE
    for first in range(0, width, TILE):
        j = first + tl.arange(0, TILE)
        of_column = tl.load(columns + column + j, mask=(j < width) & scaled, other=1.0)
        value = tl.load(x + begin + j, mask=j < width, other=0)
        share = value * _inverse(of_row) * _inverse(of_column)
        size = tl.floor(tl.abs(share) + up)
        size = tl.where(size > LARGEST, LARGEST * 1.0, size)
        code = tl.where(known, tl.where(share < 0, -size, size), 0.0)
        tl.store(codes + begin + j, code.to(tl.int8), mask=j < width)
        if KEEP:
            left = tl.where(known, value - code * of_column * of_row, float("nan"))
            tl.store(x + begin + j, left, mask=j < width)


@triton.jit
def _add_decoded(codes, rows, columns, places, out, num_columns, TILE: tl.constexpr):
    row = tl.program_id(0)
    begin, width = tl.load(places + 3 * row), tl.load(places + 3 * row + 1).to(tl.int32)
    column = tl.load(places + 3 * row + 2)
    scaled, of_row = column < num_columns, tl.load(rows + row)
    for first in range(0, width, TILE):
        j = first + tl.arange(0, TILE)
        of_column = tl.load(columns + column + j, mask=(j < width) & scaled, other=1.0)
        code = tl.load(codes + begin + j, mask=j < width, other=0).to(tl.float32)
        value = tl.load(out + begin + j, mask=j < width, other=0)
        tl.store(out + begin + j, value + code * of_column * of_row, mask=j < width)
