"""The primitives in plain torch operations: the definition that every other implementation must match bit for bit."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny


def _blocks(rows: Tensor, block_size: int) -> Tensor:
    """``[R, n]`` as float32 ``[R, ceil(n / block_size), block_size]``, zero-padded."""
    n = rows.shape[1]
    count = math.ceil(n / block_size)
    return F.pad(rows.float(), (0, count * block_size - n)).view(rows.shape[0], count, block_size)


def absmax_quantize(rows: Tensor, block_size: int, codes: Tensor, scales: Tensor) -> None:
    """Quantise each block of a row to int8 with its own scale.

    ``rows`` float ``[R, n]``; ``codes`` int8 ``[R, n]`` and ``scales`` float32 ``[R, ceil(n / block_size)]``
    are written (both may be strided views). scale = max|x| / 127, code = round-half-even(x * (1 / scale)).
    A block whose scale would be denormal gets scale 0 and codes 0; one that is not finite, scale NaN and
    codes 0.
    """
    if rows.numel() == 0:
        return
    blocks = _blocks(rows, block_size)
    peak = blocks.abs().amax(-1)
    scale = peak / 127
    finite, usable = torch.isfinite(peak), scale >= TINY
    inverse = torch.where(finite & usable, 1 / scale, 0)
    scaled = torch.where(finite.unsqueeze(-1), blocks, 0) * inverse.unsqueeze(-1)
    codes.copy_(scaled.round_().clamp_(-127, 127).flatten(1)[:, : rows.shape[1]])
    scales.copy_(torch.where(finite, torch.where(usable, scale, 0), torch.nan))


def absmax_dequantize(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """Float32 ``[R, n]``: every code times its block's scale."""
    n = codes.shape[1]
    if codes.numel() == 0:
        return codes.new_zeros(codes.shape, dtype=torch.float32)
    values = _blocks(codes, block_size) * scales.unsqueeze(-1)
    return values.flatten(1)[:, :n]


def absmax_dequantize_sum(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """Float32 ``[n]``: the sum of the decoded rows, accumulated in row order."""
    total = torch.zeros(codes.shape[1], device=codes.device)
    for row in range(codes.shape[0]):
        total += absmax_dequantize(codes[row : row + 1], scales[row : row + 1], block_size)[0]
    return total


def topk(rows: Tensor, k: int, values: Tensor, indices: Tensor) -> None:
    """The ``k`` elements of largest magnitude of each row, by ascending index.

    ``rows`` float ``[R, n]``; ``values`` float32 ``[R, k]`` and ``indices`` int32 ``[R, k]`` are written.
    NaN counts as largest. Which of several equal magnitudes is kept is not specified.
    """
    if k == 0:
        return
    chosen = rows.abs().topk(k, dim=1, sorted=False).indices.sort(dim=1).values
    indices.copy_(chosen)
    values.copy_(rows.gather(1, chosen))
