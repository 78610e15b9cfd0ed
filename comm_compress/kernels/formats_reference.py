"""Powers of two and trits: definitions in torch operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comm_compress.kernels.random_reference import random_bits

MANTISSA = 23
ONE = 1 << MANTISSA  # of a mantissa
MAGNITUDE, INFINITY = 0x7FFFFFFF, 0x7F800000
TRITS = 5  # in a byte: 3^5 = 243


def powers_of_two(rows: Tensor, lowest: Tensor, key: tuple[int, int] | None) -> Tensor:
    """Round every magnitude to zero or a power of two: uint8 ``[R, n]`` of places, 0 for zero.

    ``rows`` float ``[R, n]``; ``lowest`` uint8 ``[R]``, at least 1: the float32 exponent field at place 1, so that
    place p means 2^(p + lowest - 1 - 127). With the magnitude between neighbours a < b, the result is b where
    floor((|x| - a) / (b - a) * 2^23) + noise >= 2^23: noise is 2^22 without a ``key`` (to nearest, ties up), and
    the low 23 bits of random_bits(key)[row * n + i] with one (unbiased; below place 1 to 2^-23 of its power). Finite
    magnitudes stop at field 254; infinities and NaN get 255.
    """
    if rows.numel() == 0:
        return torch.zeros(rows.shape, dtype=torch.uint8, device=rows.device)
    noise: Tensor | int = ONE >> 1
    if key is not None:
        noise = (random_bits(key, rows.numel(), rows.device) & (ONE - 1)).view(rows.shape)
    bits = rows.float().contiguous().view(torch.int32) & MAGNITUDE
    first = lowest.int().unsqueeze(1)
    to_first = ((254 - first) << MANTISSA).view(torch.float32)  # 1 / 2^(lowest - 127)
    share = (torch.where(bits < INFINITY, bits, 0).view(torch.float32) * to_first).clamp_(max=1) * ONE
    below = (share.int() + noise) >> MANTISSA
    above = ((bits.clamp(max=INFINITY) + noise) >> MANTISSA).clamp_(max=254) - (first - 1)
    places = torch.where(bits >> MANTISSA < first, below, above)
    return torch.where(bits >= INFINITY, 255, places).to(torch.uint8)


def signed_powers(places: Tensor, lowest: Tensor, negative: Tensor) -> Tensor:
    """Float32 ``[R, n]``: the values of the places that `powers_of_two` gave (field 255: infinity).

    ``negative`` uint8 ``[R, n]``, 0 or 1: the signs.
    """
    fields = torch.where(places > 0, places + (lowest.int() - 1).unsqueeze(1), 0)
    return ((fields << MANTISSA) | (negative.int() << 31)).view(torch.float32)


def pack_trits(codes: Tensor, packed: Tensor) -> None:
    """Five codes a byte: byte j is the sum of (code[5j + i] + 1) * 3^i for i from 0 to 4.

    ``codes`` int8 ``[R, n]`` of -1, 0, 1; ``packed`` uint8 ``[R, ceil(n / 5)]`` is written. Codes beyond n are -1.
    """
    digits = F.pad(codes + 1, (0, -codes.shape[1] % TRITS)).view(codes.shape[0], -1, TRITS)
    powers = torch.tensor([3**i for i in range(TRITS)], dtype=torch.int32, device=codes.device)
    packed.copy_((digits * powers).sum(-1, dtype=torch.int32))


def unpack_trits(packed: Tensor, n: int) -> Tensor:
    """int8 ``[R, n]``: the codes that `pack_trits` wrote."""
    powers = torch.tensor([3**i for i in range(TRITS)], dtype=torch.int32, device=packed.device)
    digits = packed.int().unsqueeze(-1) // powers % 3 - 1
    return digits.view(packed.shape[0], -1)[:, :n].to(torch.int8)
