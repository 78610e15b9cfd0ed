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


def absmax_quantize(rows: Tensor, block_size: int, codes: Tensor, scales: Tensor, levels: int = 127) -> None:
    """Quantise each block of a row to integers from -levels to levels with its own scale.

    ``rows`` float ``[R, n]``; ``codes`` int8 ``[R, n]`` and ``scales`` float32 ``[R, ceil(n / block_size)]``
    are written (both may be strided views). scale = max|x| / levels, code = round-half-even(x * (1 / scale)).
    A block whose scale would be denormal gets scale 0 and codes 0; one that is not finite, scale NaN and
    codes 0.
    """
    if rows.numel() == 0:
        return
    blocks = _blocks(rows, block_size)
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
    values = _blocks(codes, block_size) * scales.unsqueeze(-1)
    return values.flatten(1)[:, :n]


def absmax_dequantize_sum(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """Float32 ``[n]``: the sum of the decoded rows, accumulated in row order."""
    total = torch.zeros(codes.shape[1], device=codes.device)
    for row in range(codes.shape[0]):
        total += absmax_dequantize(codes[row : row + 1], scales[row : row + 1], block_size)[0]
    return total


def pack(codes: Tensor, bits: int, packed: Tensor) -> None:
    """Write the low ``bits`` of every code as one little-endian bit stream a row.

    ``codes`` int32, int8 or uint8 ``[R, n]``, ``bits`` from 1 to 31; ``packed`` uint8 ``[R, ceil(n * bits / 8)]``:
    code i takes bits ``i * bits`` to ``(i + 1) * bits``, bit j of the stream is bit ``j % 8`` of byte ``j // 8``.
    Unused bits of the last byte are zero.
    """
    rows, n = codes.shape
    places = torch.arange(bits, device=codes.device, dtype=torch.int32)
    stream = ((codes.int().unsqueeze(-1) >> places) & 1).view(rows, n * bits)
    octets = F.pad(stream, (0, -n * bits % 8)).view(rows, -1, 8)
    packed.copy_((octets << torch.arange(8, device=codes.device, dtype=torch.int32)).sum(-1))


def unpack(packed: Tensor, bits: int, n: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """``[R, n]`` of ``dtype`` (int32, or uint8 for at most 8 bits): the unsigned codes that `pack` wrote."""
    octets = (packed.int().unsqueeze(-1) >> torch.arange(8, device=packed.device, dtype=torch.int32)) & 1
    stream = octets.view(packed.shape[0], -1)[:, : n * bits].view(packed.shape[0], n, bits)
    return (stream << torch.arange(bits, device=packed.device, dtype=torch.int32)).sum(-1, dtype=torch.int32).to(dtype)


def random_bits(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """int32 ``[n]``: 32 random bits for each of the counters 0 to n - 1 under a 64-bit ``key``.

    Three rounds of a 32-bit mixer (constants found by the hash prospector project, public domain), half of the
    key before each of the first two. A function of counter and key: any element can be had alone, on any device.
    """
    words = torch.arange(n, dtype=torch.int32, device=device)
    for word in key:
        words = _mix(words ^ _as_int32(word))
        words = words * _as_int32(0x9E3779B1) + _as_int32(word)
    return _mix(words)


def _mix(words: Tensor) -> Tensor:
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
        words = (words ^ _shifted(words, shift)) * _as_int32(factor)
    return words ^ _shifted(words, 15)


def _shifted(words: Tensor, places: int) -> Tensor:
    """Logical shift right (torch's int32 shift keeps the sign)."""
    return (words >> places) & ((1 << (32 - places)) - 1)


def _as_int32(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def uniform(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """float32 ``[n]`` in [0, 1): the upper 24 of `random_bits`, each value a multiple of 2^-24."""
    return _shifted(random_bits(key, n, device), 8).float() * 2.0**-24
