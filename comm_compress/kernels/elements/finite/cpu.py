"""Whether numbers are finite, as numba kernels: the largest magnitude's bits tell."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.elements.finite import reference
from comm_compress.kernels.tools.compiled import INFINITY, Array, compiled
from comm_compress.kernels.tools.threads import over_blocks
from comm_compress.kernels.tools.vectors.vectors import LANES, bits_of, larger, largest_bits, load, splat, store

PIECE = 1 << 14  # elements that are looked at together
KNOWN = (torch.float32, torch.bfloat16, torch.float16)


def all_finite(x: Tensor) -> Tensor:
    if x.dtype not in KNOWN or not x.is_contiguous():
        return reference.all_finite(x)
    pieces = -(-x.numel() // PIECE)
    good = np.empty(pieces, np.bool_)
    over_blocks(_all_finite, pieces, PIECE, bits_of(x).reshape(-1), good)
    return torch.tensor(bool(good.all()))


def difference(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    if a.dtype not in KNOWN or b.dtype not in KNOWN or not (a.is_contiguous() and b.is_contiguous()):
        return reference.difference(a, b, out)
    pieces = -(-a.numel() // PIECE)
    good = np.empty(pieces, np.bool_)
    over_blocks(_difference, pieces, PIECE, bits_of(a), bits_of(b), out.numpy(), good)
    return torch.tensor(bool(good.all()))


@compiled
def _all_finite(first: int, last: int, x: Array, good: Array) -> None:
    for piece in range(first, last):
        peak = splat(np.float32(0))
        end = min((piece + 1) * PIECE, x.size)
        for i in range(piece * PIECE, end, LANES):
            peak = larger(peak, load(x, i, end))
        good[piece] = largest_bits(peak) < INFINITY


@compiled
def _difference(first: int, last: int, a: Array, b: Array, out: Array, good: Array) -> None:
    for piece in range(first, last):
        peak = splat(np.float32(0))
        end = min((piece + 1) * PIECE, a.size)
        for i in range(piece * PIECE, end, LANES):
            x = load(a, i, end) - load(b, i, end)
            store(out, i, end, x)
            peak = larger(peak, x)
        good[piece] = largest_bits(peak) < INFINITY
