"""32 signed powers of two and their codes in vector registers: `powers.reference`'s bits.

Noise is 32 random words, of which the upper 23 bits count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from comm_compress.kernels.quantisers.powers.reference import LARGEST, MANTISSA, ONE, SIGN
from comm_compress.kernels.tools.compiled import INFINITY, MAGNITUDE
from comm_compress.kernels.tools.vectors.llvm import BYTE, FLOAT, WORD, intrinsic, load_lanes, repeated, spread
from comm_compress.kernels.tools.vectors.vectors import BYTES, FLOATS, LANES

TO_NEAREST = np.uint32(1 << 31)  # instead of noise
NUMBERS, WORDS, OCTETS = (ir.VectorType(element, LANES) for element in (FLOAT, WORD, BYTE))


@intrinsic
def exponent_fields(context: Any, x: Any, noise: Any, i: Any) -> Any:
    """The exponent fields of rounded magnitudes, 255 if not finite; noise from ``noise[i]`` on."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, words, i = arguments
        magnitude = builder.and_(builder.bitcast(x, WORDS), repeated(int(MAGNITUDE), WORDS))
        drawn = _noise_at(context, builder, signature.args[1], words, i)
        return builder.trunc(_finite(builder, magnitude, _field(builder, magnitude, drawn)), OCTETS)

    return BYTES(FLOATS, noise, types.intp), build


@intrinsic
def window_codes(context: Any, x: Any, noise: Any, i: Any, lowest: Any) -> Any:
    """Codes in the window from the field ``lowest`` (int32) on: as `powers.reference.encode_window`'s."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, words, i, lowest = arguments
        magnitude = builder.and_(builder.bitcast(x, WORDS), repeated(int(MAGNITUDE), WORDS))
        drawn, first = _noise_at(context, builder, signature.args[1], words, i), spread(builder, lowest, LANES)
        to_first = builder.shl(builder.sub(repeated(LARGEST, WORDS), first), repeated(MANTISSA, WORDS))
        share = builder.fmul(builder.bitcast(magnitude, x.type), builder.bitcast(to_first, x.type))
        whole = repeated(1.0, x.type)
        share = builder.select(builder.fcmp_ordered("<", share, whole), share, whole)
        share = builder.fptosi(builder.fmul(share, repeated(float(ONE), x.type)), WORDS)
        under = builder.lshr(builder.add(share, drawn), repeated(MANTISSA, WORDS))
        inside = builder.sub(_field(builder, magnitude, drawn), builder.sub(first, repeated(1, WORDS)))
        is_under = builder.icmp_signed("<", builder.lshr(magnitude, repeated(MANTISSA, WORDS)), first)
        place = _finite(builder, magnitude, builder.select(is_under, under, inside))
        negative = builder.zext(builder.fcmp_ordered("<", x, repeated(0.0, x.type)), WORDS)
        return builder.trunc(builder.or_(place, builder.shl(negative, repeated(SIGN, WORDS))), OCTETS)

    return BYTES(FLOATS, noise, types.intp, types.int32), build


@intrinsic
def powers(context: Any, fields: Any) -> Any:
    """Floats whose exponent fields are these bytes, all other bits 0: 0, or 2^(byte - 127)."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = builder.zext(arguments[0], WORDS)
        return builder.bitcast(builder.shl(wide, repeated(MANTISSA, WORDS)), NUMBERS)

    return FLOATS(BYTES), build


@intrinsic
def signed_powers(context: Any, codes: Any) -> Any:
    """As `powers` of the low 7 bits; bit 7 is the sign."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.shl(builder.sext(arguments[0], WORDS), repeated(MANTISSA, WORDS))
        return builder.bitcast(builder.and_(bits, repeated(0xBFFFFFFF, WORDS)), NUMBERS)

    return FLOATS(BYTES), build


def _noise_at(context: Any, builder: Any, kind: Any, words: Any, i: Any) -> Any:
    end = builder.add(i, i.type(LANES))
    drawn = load_lanes(context, builder, kind, words, i, end, LANES)
    return builder.lshr(drawn, repeated(32 - MANTISSA, WORDS))


def _field(builder: Any, magnitude: Any, noise: Any) -> Any:
    """The carry of the addition ends in the exponent."""
    infinity, top = repeated(int(INFINITY), WORDS), repeated(LARGEST, WORDS)
    magnitude = builder.select(builder.icmp_signed("<", magnitude, infinity), magnitude, infinity)
    field = builder.lshr(builder.add(magnitude, noise), repeated(MANTISSA, WORDS))
    return builder.select(builder.icmp_signed("<", field, top), field, top)


def _finite(builder: Any, magnitude: Any, code: Any) -> Any:
    finite = builder.icmp_signed("<", magnitude, repeated(int(INFINITY), WORDS))
    return builder.select(finite, code, repeated(255, WORDS))
