"""Signed powers of two in 9 bits or 8: definitions in torch operations.

A magnitude between neighbours a < b, each zero or a power of two, becomes b where floor((|x| - a) / (b - a) * 2^23)
+ noise >= 2^23: noise is 2^22 without a ``key`` (to nearest, ties up), and the upper 23 bits of `noise_bits` with one:
unbiased. On float32's bits that is one addition whose carry ends in the exponent.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comm_compress.kernels.common.residual import Residual
from comm_compress.kernels.reference import bits as bits_reference
from comm_compress.kernels.reference.random import noise_bits

MANTISSA = 23
ONE = 1 << MANTISSA  # of a mantissa
MAGNITUDE, INFINITY = 0x7FFFFFFF, 0x7F800000
LARGEST = 254  # exponent field of the largest finite power of two, 2^127
WINDOW = 127  # powers that 7 bits tell apart, beside zero
POWER_BLOCK = 2048  # elements of a row that share a window
NOT_FINITE = 0  # instead of a block's lowest exponent field, which is 1 or more
SIGN = 7  # the bit


def encode_powers(
    rows: Tensor, key: tuple[int, int] | None, exponents: Tensor, signs: Tensor, residual: Residual | None = None
) -> None:
    """Write the exponent fields and the packed bits "x < 0" of the rounded float ``rows`` ``[R, n]``.

    ``exponents`` uint8 ``[R, n]``, ``signs`` uint8 ``[R, ceil(n / 8)]``. Field 0 is zero; magnitudes stop at field 254,
    infinities and NaN get 255. With a ``residual``, its target is encoded and ``residual.new`` becomes what that loses.
    """
    target = rows.float() if residual is None else residual.target(rows)
    lowest = torch.ones(rows.shape[0], 1, dtype=torch.int32, device=rows.device)
    exponents.copy_(_places(target, lowest, key))
    bits_reference.pack((target < 0).view(torch.uint8), 1, signs)
    if residual is not None:
        target.sub_(_powers(exponents, signs))


def decode_powers(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    """The powers of two (field 255: infinity), to ``out`` ``[R, n]`` of any float dtype."""
    out.copy_(_powers(exponents, signs))


def sum_powers(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    """The sum of the decoded rows, accumulated in row order, to ``out`` float32 ``[n]``."""
    out.zero_()
    for row in _powers(exponents, signs):
        out += row


def encode_window(
    rows: Tensor, key: tuple[int, int] | None, lowest: Tensor, codes: Tensor, residual: Residual | None = None
) -> None:
    """Write the rounded float ``rows`` ``[R, n]``, n > 0, in a byte an element, and where each block's window lies.

    ``lowest`` uint8 ``[R, ceil(n / 2048)]``: the exponent field of the smallest power, 126 below the one after the
    block's largest magnitude's, at least 1; 0 when the block is not finite. ``codes`` uint8 ``[R, n]``: "x < 0" in
    bit 7, below it 0 for zero or p for the power with the field p + lowest - 1 (no matter what in a block that is not
    finite). With a ``residual``, its target is encoded and ``residual.new`` becomes what that loses.
    """
    target, n = rows.float() if residual is None else residual.target(rows), rows.shape[1]
    magnitudes = target.contiguous().view(torch.int32) & MAGNITUDE
    peaks = F.pad(magnitudes, (0, -n % POWER_BLOCK)).view(rows.shape[0], -1, POWER_BLOCK).amax(2)
    first = lowest_fields(peaks)
    codes.copy_(_places(target, _of_elements(first, n), key).bitwise_or_((target < 0).view(torch.uint8) << SIGN))
    lowest.copy_(torch.where(peaks < INFINITY, first, NOT_FINITE))
    if residual is not None:
        target.sub_(_windows(lowest, codes))


def decode_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    """The powers of two, NaN in blocks that are not finite, to ``out`` ``[R, n]`` of any float dtype."""
    out.copy_(_windows(lowest, codes))


def sum_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    """The sum of the decoded rows, accumulated in row order, to ``out`` float32 ``[n]``."""
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
