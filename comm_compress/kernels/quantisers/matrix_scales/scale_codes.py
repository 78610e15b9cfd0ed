"""Mean squares as bytes, half an octave each, and the scales that such bytes stand for, in numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from comm_compress.kernels.quantisers.matrix_scales.matrices import NOTHING
from comm_compress.kernels.tools.compiled import TINY, Array, compiled, inlined

EXPONENT, BIAS = 52, 1023  # of a float64


@inlined
def inverse(scale: Any) -> Any:
    """One divided by a scale, and zero by a scale of zero."""
    return np.float32(1.0) / scale if scale > 0 else np.float32(0.0)


@compiled
def inverses(scales: Array) -> Array:
    """`inverse` of every scale."""
    inverses = np.empty_like(scales)
    for i in range(scales.size):
        inverses[i] = inverse(scales[i])
    return inverses


@compiled
def encode_scales(mean_squares: Array, lengths: Array, limits: Array, codes: Array, peaks: Array) -> None:
    """A byte for every mean square, by the largest of its matrix, whose root is the peak; NaN where not finite."""
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
def decode_scales(codes: Array, lengths: Array, peaks: Array, factors: Array, scales: Array) -> None:
    """The scales that bytes and peaks stand for; zero where they would not be normal numbers."""
    end = 0
    for matrix in range(lengths.size):
        begin, end = end, end + lengths[matrix]
        for i in range(begin, end):
            scale = factors[codes[i]] * peaks[matrix]
            scales[i] = np.float32(0.0) if scale < TINY else scale
