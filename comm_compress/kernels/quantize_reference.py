"""Norms of blocks, stochastic rounding by given scales, the Hadamard rotation: definitions in torch operations."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.absmax_reference import TINY, in_blocks
from comm_compress.kernels.random_reference import uniform

ROTATED = 32  # elements that one Hadamard rotation mixes


def block_norms(rows: Tensor, block_size: int, p: float) -> Tensor:
    """The p-norm of each block of a row: float64 ``[R, ceil(n / block_size)]``.

    ``rows`` float ``[R, n]``; ``p`` is 1, 2 or infinity. Not finite if and only if an element is not, NaN if
    one is NaN. The powers are summed in float64 (float32 squares neither overflow nor vanish there) by halving:
    with h = ceil(length / 2), element h + i is added to element i, until one is left. So the order, and
    with it every bit, is the same on every device.
    """
    assert p in (1, 2, math.inf)
    if rows.numel() == 0:
        return torch.zeros(
            rows.shape[0], math.ceil(rows.shape[1] / block_size), dtype=torch.float64, device=rows.device
        )
    magnitudes = in_blocks(rows, block_size).abs()
    if p == math.inf:
        return magnitudes.amax(-1).double()
    terms = magnitudes.double()
    if p == 2:
        terms.square_()
    while terms.shape[-1] > 1:
        half = math.ceil(terms.shape[-1] / 2)
        left, right = terms[..., :half], terms[..., half:]
        left[..., : right.shape[-1]] += right
        terms = left
    return _sqrt(terms[..., 0]) if p == 2 else terms[..., 0]


def _sqrt(x: Tensor) -> Tensor:
    """Correctly rounded on every device: numpy's and CUDA's are, torch's on CPU is not always."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()


def stochastic_quantize(
    rows: Tensor, scales: Tensor, block_size: int, levels: int, key: tuple[int, int], codes: Tensor, offset: float = 0
) -> None:
    """Round each element to one of the two integers around it, so that the mean is the element.

    ``rows`` float ``[R, n]``, ``scales`` float32 ``[R, ceil(n / block_size)]``; ``codes`` int8 ``[R, n]`` is
    written (may be a strided view). With t = x * (1 / scale) + offset, code = floor(t) + [u < t - floor(t)],
    u = uniform(key)[row * n + i], cut to -levels..levels. Codes of a block whose scale is below the smallest
    normal number or not finite are 0; the other blocks must be finite.
    """
    if rows.numel() == 0:
        return
    usable = torch.isfinite(scales) & (scales >= TINY)
    inverse = torch.where(usable, 1 / scales, 0).unsqueeze(-1)
    t = torch.where(usable.unsqueeze(-1), in_blocks(rows, block_size), 0) * inverse + offset
    whole = t.floor()
    noise = in_blocks(uniform(key, rows.numel(), rows.device).view(rows.shape), block_size)
    rounded = (whole + (noise < t - whole)).clamp_(-levels, levels)
    codes.copy_(torch.where(usable.unsqueeze(-1), rounded, 0).flatten(1)[:, : rows.shape[1]])


def hadamard(rows: Tensor) -> Tensor:
    """Float32 ``[R, n]``: every 32 elements times the normalised 32-point Hadamard matrix, which is its own inverse.

    The elements after the last multiple of 32 stay as they are. Elements are multiplied by 32^-1/2 first, then
    added and subtracted over distances 1, 2, 4, 8, 16.
    """
    num_rows, n = rows.shape
    whole = n - n % ROTATED
    x = (rows[:, :whole].float() * ROTATED**-0.5).reshape(num_rows, -1)
    distance = 1
    while distance < ROTATED:
        a, b = x.view(num_rows, -1, 2, distance).unbind(2)
        x = torch.stack((a + b, a - b), 2).view(num_rows, -1)
        distance *= 2
    return torch.cat((x, rows[:, whole:].float()), 1)
