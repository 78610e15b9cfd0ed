"""Thin factors between their products as numba kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.projections.factors.lines import Lines
from comm_compress.kernels.projections.factors.reference import LEAST, MOST
from comm_compress.kernels.tools.compiled import INFINITY, MAGNITUDE, Array, compiled, inlined

MANTISSA, BIAS = 23, 127  # of float32: bits, and what is added to an exponent
NAN = np.int32(0x7F800001)  # bits of the smallest NaN: magnitudes order like their bits


def take(rows: Tensor, lines: Lines, index: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    values = torch.empty(rows.shape[0], lines.num_values)
    places = torch.empty(rows.shape[0], lines.num_elements, dtype=torch.int64)
    _take(rows.numpy(), lines.table, index.numpy(), weights.numpy(), values.numpy(), places.numpy())
    return values, places


def places(lines: Lines, index: Tensor) -> Tensor:
    places = torch.empty(index.shape[0], lines.num_elements, dtype=torch.int64)
    _places(lines.table, index.numpy(), places.numpy())
    return places


def spread(values: Tensor, lines: Lines, index: Tensor, exponents: Tensor) -> Tensor:
    spread = torch.empty_like(values)
    _spread(values.numpy(), lines.table, index.numpy(), exponents.numpy(), spread.numpy())
    return spread


def powers_of(lengths: Tensor) -> tuple[Tensor, Tensor]:
    exponents, weights = torch.empty_like(lengths, dtype=torch.int8), torch.empty_like(lengths)
    _powers_of(lengths.numpy().reshape(-1), exponents.numpy().reshape(-1), weights.numpy().reshape(-1))
    return exponents, weights


def weigh(factors: Tensor, weights: Tensor) -> None:
    _weigh(factors.numpy(), weights.numpy())


def scale(factors: Tensor) -> None:
    _scale(factors.view(factors.shape[0], -1).numpy())


@compiled
def _take(rows: Array, table: Array, index: Array, weights: Array, values: Array, places: Array) -> None:
    for row in range(rows.shape[0]):
        line, first, value, element = 0, 0, 0, 0
        for matrix in range(table.shape[0]):
            start, long, short, line_apart, apart, r, whole = table[matrix]
            value += r * long
            for k in range(whole):
                number = index[row, line + k]
                begin, weight = start + number * line_apart, weights[row, first + number]
                weights[row, first + number] = 0
                for j in range(short):
                    places[row, element + j] = begin + j * apart
                    values[row, value + j] = rows[row, begin + j * apart] * weight
                element, value = element + short, value + short
            line, first = line + whole, first + long


@compiled
def _places(table: Array, index: Array, places: Array) -> None:
    for row in range(index.shape[0]):
        line, element = 0, 0
        for matrix in range(table.shape[0]):
            start, _, short, line_apart, apart, _, whole = table[matrix]
            for k in range(whole):
                begin = start + index[row, line + k] * line_apart
                for j in range(short):
                    places[row, element + j] = begin + j * apart
                element += short
            line += whole


@compiled
def _spread(values: Array, table: Array, index: Array, exponents: Array, spread: Array) -> None:
    scales = np.empty(exponents.shape[1], np.float32)
    for row in range(values.shape[0]):
        for i in range(scales.size):
            scales[i] = _power(exponents[row, i])
        line, first, value = 0, 0, 0
        for matrix in range(table.shape[0]):
            _, long, short, _, _, r, whole = table[matrix]
            scale = scales[first : first + long]
            for _ in range(r):
                x, out = values[row, value : value + long], spread[row, value : value + long]
                for i in range(long):
                    out[i] = x[i] * scale[i]
                value += long
            for k in range(whole):
                factor = scale[index[row, line + k]]
                for j in range(value, value + short):
                    spread[row, j] = values[row, j] * factor
                value += short
            line, first = line + whole, first + long


@inlined
def _power(exponent: Any) -> Any:
    """2^exponent, of -127 to 127, as float32; the least of these is a denormal number."""
    bits = np.int32(np.int32(exponent) + np.int32(BIAS)) << MANTISSA
    return np.int32(max(bits, np.int32(1 << MANTISSA - 1))).view(np.float32)


@compiled
def _powers_of(lengths: Array, exponents: Array, weights: Array) -> None:
    bits = lengths.view(np.int32)
    for i in range(bits.size):
        magnitude = np.int32(bits[i] & MAGNITUDE)
        exponent = min(max(np.int32(magnitude >> MANTISSA) - np.int32(BIAS - 1), np.int32(LEAST)), np.int32(MOST))
        exponent = np.int32(0) if magnitude == 0 or magnitude >= INFINITY else exponent
        exponents[i] = exponent
        weights[i] = _power(-exponent)


@compiled
def _weigh(factors: Array, weights: Array) -> None:
    for row in range(factors.shape[0]):
        of_row = weights[row].copy()
        for line in range(factors.shape[1]):
            x = factors[row, line]
            for i in range(x.size):
                x[i] *= of_row[i]
        divisor = _peak(factors[row].reshape(-1))
        for line in range(factors.shape[1]):
            x = factors[row, line]
            for i in range(x.size):
                x[i] = x[i] / divisor * of_row[i]


@compiled
def _scale(factors: Array) -> None:
    for row in range(factors.shape[0]):
        x = factors[row]
        divisor = _peak(x)
        for i in range(x.size):
            x[i] /= divisor


@compiled
def _peak(x: Array) -> np.float32:
    """The largest magnitude; 1 where that is 0 or NaN."""
    bits, peak = x.view(np.int32), np.int32(0)
    for i in range(bits.size):
        peak = max(peak, np.int32(bits[i] & MAGNITUDE))
    if peak == 0 or peak >= NAN:
        return np.float32(1)
    return np.int32(peak).view(np.float32)
