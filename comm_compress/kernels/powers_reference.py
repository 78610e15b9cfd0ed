"""Signed powers of two in 9 bits or 8: definitions in torch operations.

A magnitude between neighbours a < b, each zero or a power of two, becomes b where floor((|x| - a) / (b - a) * 2^23)
+ noise >= 2^23: noise is 2^22 without a ``key`` (to nearest, ties up), and for element i of row r the low 23 bits of
random_bits(key)[r * n + i] with one: unbiased. On float32's bits that is one addition whose carry ends in the exponent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels import bits_reference
from comm_compress.kernels.random_reference import random_bits
from comm_compress.kernels.residual import Residual

MANTISSA = 23
ONE = 1 << MANTISSA  # of a mantissa
MAGNITUDE, INFINITY = 0x7FFFFFFF, 0x7F800000
LARGEST = 254  # exponent field of the largest finite power of two, 2^127
WINDOW = 127  # powers that 7 bits tell apart, beside zero
NOT_FINITE = 0  # instead of a row's lowest exponent field, which is 1 or more
SIGN = 7  # the bit


def encode_powers(
    rows: Tensor, key: tuple[int, int] | None, exponents: Tensor, signs: Tensor, residual: Residual | None = None
) -> None:
    """Write the exponent fields and the packed bits "x < 0" of the rounded float ``rows`` ``[R, n]``.

    ``exponents`` uint8 ``[R, n]``, ``signs`` uint8 ``[R, ceil(n / 8)]``. Field 0 is zero; magnitudes stop at field 254,
    infinities and NaN get 255. With a ``residual``, its target is encoded and ``residual.new`` becomes what that loses.
    """
    target = rows.float() if residual is None else residual.target(rows)
    lowest = torch.ones(rows.shape[0], dtype=torch.int32, device=rows.device)
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
    """Write the rounded float ``rows`` ``[R, n]``, n > 0, in a byte an element, and where the row's window lies.

    ``lowest`` uint8 ``[R, 1]``: the exponent field of the smallest power, 126 below the one after the row's largest
    magnitude's, at least 1; 0 when the row is not finite. ``codes`` uint8 ``[R, n]``: "x < 0" in bit 7, below it 0 for
    zero or p for the power with the field p + lowest - 1 (no matter what in a row that is not finite).
    With a ``residual``, its target is encoded and ``residual.new`` becomes what that loses.
    """
    target = rows.float() if residual is None else residual.target(rows)
    peaks = (target.contiguous().view(torch.int32) & MAGNITUDE).amax(1)
    first = lowest_fields(peaks)
    codes.copy_(_places(target, first, key).bitwise_or_((target < 0).view(torch.uint8) << SIGN))
    lowest.copy_(torch.where(peaks < INFINITY, first, NOT_FINITE).unsqueeze(1))
    if residual is not None:
        target.sub_(_windows(lowest, codes))


def decode_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    """The powers of two, NaN in rows that are not finite, to ``out`` ``[R, n]`` of any float dtype."""
    out.copy_(_windows(lowest, codes))


def sum_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    """The sum of the decoded rows, accumulated in row order, to ``out`` float32 ``[n]``."""
    out.zero_()
    for row in _windows(lowest, codes):
        out += row


def lowest_fields(peaks: Tensor) -> Tensor:
    """int32 ``[R]``: where windows begin under int32 ``[R]`` bits of peaks, which may be rounded up."""
    top = ((peaks >> MANTISSA) + 1).clamp(max=LARGEST)
    return (top - (WINDOW - 1)).clamp(min=1)


def window_scales(lowest: Tensor) -> Tensor:
    """Float32, of ``lowest``'s shape: 2^(lowest - 1), NaN for rows that are not finite."""
    scales = ((lowest.int() + (LARGEST // 2 - 1)) << MANTISSA).view(torch.float32)
    return torch.where(lowest == NOT_FINITE, torch.nan, scales)


def _places(target: Tensor, lowest: Tensor, key: tuple[int, int] | None) -> Tensor:
    """uint8 ``[R, n]``: 0 for zero, p for the power with the field p + lowest - 1, 255 if not finite."""
    noise: Tensor | int = ONE >> 1
    if key is not None:
        noise = (random_bits(key, target.numel(), target.device) & (ONE - 1)).view(target.shape)
    bits = target.contiguous().view(torch.int32) & MAGNITUDE
    first = lowest.unsqueeze(1)
    to_first = ((LARGEST - first) << MANTISSA).view(torch.float32)  # 1 / 2^(lowest - 127)
    share = (torch.where(bits < INFINITY, bits, 0).view(torch.float32) * to_first).clamp_(max=1) * ONE
    below = (share.int() + noise) >> MANTISSA
    above = ((bits.clamp(max=INFINITY) + noise) >> MANTISSA).clamp_(max=LARGEST) - (first - 1)
    places = torch.where(bits >> MANTISSA < first, below, above)
    return torch.where(bits >= INFINITY, 255, places).to(torch.uint8)


def _powers(exponents: Tensor, signs: Tensor) -> Tensor:
    magnitudes = (exponents.int() << MANTISSA).view(torch.float32)
    negative = bits_reference.unpack(signs, 1, exponents.shape[1], torch.uint8) > 0
    return torch.where(negative, -magnitudes, magnitudes) + 0.0  # no negative zeros


def _windows(lowest: Tensor, codes: Tensor) -> Tensor:
    powers = (((codes & WINDOW).int() << MANTISSA) | ((codes >> SIGN).int() << 31)).view(torch.float32)
    return powers * window_scales(lowest) + 0.0  # exact; no negative zeros
