"""8-bit floats in vector registers, by arithmetic: looking 256 values up in a table takes longer."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from comm_compress.kernels.tools.vectors.llvm import BYTE, FLOAT, WORD, literal_intrinsic, repeated
from comm_compress.kernels.tools.vectors.vectors import BYTES, FLOATS, LANES

_BYTES, _WORDS, _FLOATS = (ir.VectorType(kind, LANES) for kind in (BYTE, WORD, FLOAT))
BIAS = {3: 7, 2: 15}  # of exponents, by bits of the mantissa: e4m3 and e5m2


@literal_intrinsic
def to_float8(context: Any, x: Any, mantissa: Any) -> Any:
    """Floats no larger than the format's largest number (1 + 2^-23) as its codes: the nearest, ties to even.

    ``mantissa`` (a constant): 3 for e4m3, 2 for e5m2.
    """
    if not isinstance(mantissa, types.IntegerLiteral):
        return None
    width = mantissa.literal_value

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], _WORDS)
        magnitude = builder.and_(bits, _all(0x7FFFFFFF))
        drop, rebias = 23 - width, 127 - BIAS[width]
        odd = builder.and_(builder.lshr(magnitude, _all(drop)), _all(1))
        up = builder.add(builder.add(magnitude, _all((1 << drop - 1) - 1)), odd)
        normal = builder.sub(builder.lshr(up, _all(drop)), _all(rebias << width))
        coarse = (127 + 24 - BIAS[width] - width) << 23  # bits of the power of two whose neighbours lie as far apart
        anchor = builder.bitcast(_all(coarse), _FLOATS)  # as the format's denormals: adding it rounds to these
        rounded = builder.bitcast(builder.fadd(builder.bitcast(magnitude, _FLOATS), anchor), _WORDS)
        tiny = builder.icmp_unsigned("<", magnitude, _all((rebias + 1) << 23))
        code = builder.select(tiny, builder.sub(rounded, _all(coarse)), normal)
        sign = builder.and_(builder.lshr(bits, _all(24)), _all(0x80))
        return builder.trunc(builder.or_(code, sign), _BYTES)

    return BYTES(FLOATS, mantissa), build


@literal_intrinsic
def from_float8(context: Any, codes: Any, mantissa: Any) -> Any:
    """The finite numbers that such codes stand for."""
    if not isinstance(mantissa, types.IntegerLiteral):
        return None
    width = mantissa.literal_value

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = builder.zext(arguments[0], _WORDS)
        magnitude, rebias = builder.and_(code, _all(0x7F)), 127 - BIAS[width]
        normal = builder.add(builder.shl(magnitude, _all(23 - width)), _all(rebias << 23))
        unit = repeated(2.0 ** (1 - BIAS[width] - width), _FLOATS)
        denormal = builder.bitcast(builder.fmul(builder.sitofp(magnitude, _FLOATS), unit), _WORDS)
        number = builder.select(builder.icmp_unsigned("<", magnitude, _all(1 << width)), denormal, normal)
        sign = builder.shl(builder.and_(code, _all(0x80)), _all(24))
        return builder.bitcast(builder.or_(number, sign), _FLOATS)

    return FLOATS(BYTES, mantissa), build


def _all(number: int) -> Any:
    return repeated(number, _WORDS)
