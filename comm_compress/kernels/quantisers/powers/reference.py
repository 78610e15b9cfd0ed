"""Signed powers of two in 9 bits or 8: the definition in torch operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comm_compress.kernels.elements.random.reference import noise_bits
from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.packing.bits import reference as bits_reference

MANTISSA = 23
ONE = 1 << MANTISSA  # of a mantissa
MAGNITUDE, INFINITY = 0x7FFFFFFF, 0x7F800000
LARGEST = 254  # exponent field of the largest finite power of two, 2^127
WINDOW = 127  # powers that 7 bits tell apart, beside zero
POWER_BLOCK = 2048  # elements of a row that share a window
NOT_FINITE = 0  # instead of a block's lowest exponent field, which is 1 or more
SIGN = 7  # the bit


def encode(
    rows: Tensor, key: tuple[int, int] | None, exponents: Tensor, signs: Tensor, residual: Residual | None = None
) -> None:
    target = rows.float() if residual is None else residual.target(rows)
    lowest = torch.ones(rows.shape[0], 1, dtype=torch.int32, device=rows.device)
    exponents.copy_(_places(target, lowest, key))
    bits_reference.pack((target < 0).view(torch.uint8), 1, signs)
    if residual is not None:
        target.sub_(_powers(exponents, signs))


def decode(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    out.copy_(_powers(exponents, signs))


def decode_sum(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    out.zero_()
    for row in _powers(exponents, signs):
        out += row


def encode_window(
    rows: Tensor, key: tuple[int, int] | None, lowest: Tensor, codes: Tensor, residual: Residual | None = None
) -> None:
    target, n = rows.float() if residual is None else residual.target(rows), rows.shape[1]
    magnitudes = target.contiguous().view(torch.int32) & MAGNITUDE
    peaks = F.pad(magnitudes, (0, -n % POWER_BLOCK)).view(rows.shape[0], -1, POWER_BLOCK).amax(2)
    first = lowest_fields(peaks)
    codes.copy_(_places(target, _of_elements(first, n), key).bitwise_or_((target < 0).view(torch.uint8) << SIGN))
    lowest.copy_(torch.where(peaks < INFINITY, first, NOT_FINITE))
    if residual is not None:
        target.sub_(_windows(lowest, codes))


def decode_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    out.copy_(_windows(lowest, codes))


def decode_window_sum(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    out.zero_()
    for row in _windows(lowest, codes):
        out += row


def lowest_fields(peaks: Tensor) -> Tensor:
    """int32, of the shape of int32 bits of ``peaks``: where windows begin under them, which may be rounded up."""
    top = ((peaks >> MANTISSA) + 1).clamp(max=LARGEST)
    return (top - (WINDOW - 1)).clamp(min=1)


def window_scales(lowest: Tensor) -> Tensor:
    """Float32, of ``lowest``'s shape: 2^(lowest - 1), NaN for blocks that are not finite."""
    scales = ((lowest.int() + (LARGEST // 2 - 1)) << MANTISSA).view(torch.float32)
    return torch.where(lowest == NOT_FINITE, torch.nan, scales)


def _places(target: Tensor, lowest: Tensor, key: tuple[int, int] | None) -> Tensor:
    """uint8 ``[R, n]``: 0 for zero, p for the power with the field p + lowest - 1, 255 if not finite.

    ``lowest`` int32 ``[R, n]``, or ``[R, 1]``.
    """
    noise: Tensor | int = ONE >> 1
    if key is not None:
        noise = (noise_bits(key, target.shape[0], target.shape[1], target.device) >> (32 - MANTISSA)) & (ONE - 1)
    bits = target.contiguous().view(torch.int32) & MAGNITUDE
    to_first = ((LARGEST - lowest) << MANTISSA).view(torch.float32)  # 1 / 2^(lowest - 127)
    share = (torch.where(bits < INFINITY, bits, 0).view(torch.float32) * to_first).clamp_(max=1) * ONE
    below = (share.int() + noise) >> MANTISSA
    above = ((bits.clamp(max=INFINITY) + noise) >> MANTISSA).clamp_(max=LARGEST) - (lowest - 1)
    places = torch.where(bits >> MANTISSA < lowest, below, above)
    return torch.where(bits >= INFINITY, 255, places).to(torch.uint8)


def _powers(exponents: Tensor, signs: Tensor) -> Tensor:
    magnitudes = (exponents.int() << MANTISSA).view(torch.float32)
    negative = bits_reference.unpack(signs, 1, exponents.shape[1], torch.uint8) > 0
    return torch.where(negative, -magnitudes, magnitudes) + 0.0  # no negative zeros


def _windows(lowest: Tensor, codes: Tensor) -> Tensor:
    powers = (((codes & WINDOW).int() << MANTISSA) | ((codes >> SIGN).int() << 31)).view(torch.float32)
    return powers * _of_elements(window_scales(lowest), codes.shape[1]) + 0.0  # exact; no negative zeros


def _of_elements(of_blocks: Tensor, n: int) -> Tensor:
    return of_blocks.repeat_interleave(POWER_BLOCK, 1)[:, :n]
