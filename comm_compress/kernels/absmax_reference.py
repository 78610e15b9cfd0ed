"""Integers times a scale for every block: definitions in torch operations."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny


def in_blocks(rows: Tensor, block_size: int) -> Tensor:
    """``[R, n]`` as float32 ``[R, ceil(n / block_size), block_size]``, zero-padded."""
    n = rows.shape[1]
    count = math.ceil(n / block_size)
    return F.pad(rows.float(), (0, count * block_size - n)).view(rows.shape[0], count, block_size)


def absmax_quantize(rows: Tensor, block_size: int, codes: Tensor, scales: Tensor, levels: int = 127) -> None:
    """Quantise each block of a row to integers from -levels to levels with its own scale.

    ``rows`` float ``[R, n]``; ``codes`` int8 ``[R, n]`` and ``scales`` float32 ``[R, ceil(n / block_size)]``
    are written (both may be strided views). scale = max|x| / levels, code = round-half-even(x * (1 / scale)).
    A block whose scale would be denormal gets scale 0 and codes 0; one that is not finite, scale NaN and
    codes 0.
    """
    if rows.numel() == 0:
        return
    blocks = in_blocks(rows, block_size)
    peak = blocks.abs().amax(-1)
    scale = peak / torch.full_like(peak, levels)  # CUDA multiplies by the reciprocal when it divides by a number
    finite, usable = torch.isfinite(peak), scale >= TINY
    inverse = torch.where(finite & usable, 1 / scale, 0)
    scaled = torch.where(finite.unsqueeze(-1), blocks, 0) * inverse.unsqueeze(-1)
    codes.copy_(scaled.round_().clamp_(-levels, levels).flatten(1)[:, : rows.shape[1]])
    scales.copy_(torch.where(finite, torch.where(usable, scale, 0), torch.nan))


def absmax_dequantize(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """Float32 ``[R, n]``: every code times its block's scale."""
    n = codes.shape[1]
    if codes.numel() == 0:
        return codes.new_zeros(codes.shape, dtype=torch.float32)
    values = in_blocks(codes, block_size) * scales.unsqueeze(-1)
    return values.flatten(1)[:, :n]


def absmax_dequantize_sum(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """Float32 ``[n]``: the sum of the decoded rows, accumulated in row order."""
    total = torch.zeros(codes.shape[1], device=codes.device)
    for row in range(codes.shape[0]):
        total += absmax_dequantize(codes[row : row + 1], scales[row : row + 1], block_size)[0]
    return total
