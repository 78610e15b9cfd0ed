"""32 floats at a time as the integers that order like them: how far they move, and their exponents.

Floats come as the int16 or int32 that their memory holds. `ulp.interface` says what symbols mean.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from comm_compress.kernels.coding.ulp.reference import DIRECT
from comm_compress.kernels.tools.vectors.llvm import (
    BYTE,
    DOUBLE,
    FLOAT,
    LONG,
    SHORT,
    WORD,
    element,
    intrinsic,
    repeated,
    spread,
)
from comm_compress.kernels.tools.vectors.together import load_apart, store_together
from comm_compress.kernels.tools.vectors.vectors import LANES

OCTETS = ir.VectorType(BYTE, LANES)
# what holds a number of so many bits exactly: the type, its bits, the exponent's bias, and the mantissa's bits
EXACT = {16: (FLOAT, WORD, 127, 23), 32: (DOUBLE, LONG, 1023, 52)}
CLASSES = 3  # bits below the leading one that are part of a symbol


@intrinsic
def store_distances(context: Any, old: Any, new: Any, i: Any, symbols: Any, far: Any, place: Any) -> Any:
    """Write to ``symbols[i : i + 32]`` (uint8) how far floats moved; returns how many have raw bits, int64.

    To ``far[place]`` (as wide as the floats) and on go the folded distances of these; 32 numbers are written.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        old, new, i, symbols, far, place = arguments
        before, after = (_floats(context, builder, k, x, i) for k, x in zip(signature.args, (old, new), strict=False))
        distance = builder.sub(_folded(builder, after), _folded(builder, before))
        sign = builder.ashr(distance, _all(distance, distance.type.element.width - 1))
        z = builder.xor(builder.shl(distance, _all(distance, 1)), sign)
        chosen = builder.icmp_unsigned(">=", z, _all(z, DIRECT))
        octets = builder.select(chosen, _symbols_of(builder, z), builder.trunc(z, OCTETS))
        builder.store(octets, element(context, builder, signature.args[3], symbols, i, OCTETS), align=1)
        start = element(context, builder, signature.args[4], far, place, z.type.element)
        store_together(context, builder, z, chosen, start)
        return builder.zext(builder.ctpop(builder.bitcast(chosen, WORD)), LONG)

    return types.int64(old, new, types.intp, symbols, far, types.intp), build


@intrinsic
def move(context: Any, values: Any, i: Any, symbols: Any, far: Any, place: Any) -> Any:
    """Move ``values[i : i + 32]`` by their symbols; returns how many of these have raw bits, int64.

    The folded distances of these are found at ``far[place]`` (as wide as the floats) and on; 32 numbers are read.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, i, symbols, far, place = arguments
        bits = _floats(context, builder, signature.args[0], values, i)
        octets = builder.load(element(context, builder, signature.args[2], symbols, i, OCTETS), align=1)
        chosen = builder.icmp_unsigned(">=", octets, repeated(DIRECT, OCTETS))
        start = element(context, builder, signature.args[3], far, place, bits.type.element)
        z = load_apart(context, builder, builder.zext(octets, bits.type), chosen, start)
        back = builder.sub(_all(z, 0), builder.and_(z, _all(z, 1)))
        distance = builder.xor(builder.lshr(z, _all(z, 1)), back)
        moved = _folded(builder, builder.add(_folded(builder, bits), distance))
        target = element(context, builder, signature.args[0], values, i, bits.type)
        builder.store(moved, target, align=bits.type.element.width // 8)
        return builder.zext(builder.ctpop(builder.bitcast(chosen, WORD)), LONG)

    return types.int64(values, types.intp, symbols, far, types.intp), build


@intrinsic
def store_exponents(context: Any, values: Any, i: Any, shift: Any, mask: Any, out: Any, place: Any) -> Any:
    """Write to ``out[place : place + 32]`` (uint8) the bits of ``values[i : i + 32]`` from ``shift`` on, by a mask."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, i, shift, mask, out, place = arguments
        bits = _floats(context, builder, signature.args[0], values, i)
        by, kept = (spread(builder, builder.trunc(x, bits.type.element), LANES) for x in (shift, mask))
        exponents = builder.trunc(builder.and_(builder.lshr(bits, by), kept), OCTETS)
        builder.store(exponents, element(context, builder, signature.args[4], out, place, OCTETS), align=1)
        return context.get_dummy_value()

    return types.void(values, types.intp, types.int64, types.int64, out, types.intp), build


def _floats(context: Any, builder: Any, kind: Any, values: Any, i: Any) -> Any:
    width = kind.dtype.bitwidth
    vector = ir.VectorType(SHORT if width == SHORT.width else WORD, LANES)
    return builder.load(element(context, builder, kind, values, i, vector), align=width // 8)


def _folded(builder: Any, bits: Any) -> Any:
    """Integers in the order of the floats, and back."""
    width = bits.type.element.width
    sign = builder.ashr(bits, _all(bits, width - 1))
    return builder.xor(bits, builder.and_(sign, _all(bits, (1 << (width - 1)) - 1)))


def _symbols_of(builder: Any, z: Any) -> Any:
    """A number's octave and the three bits below its leading one: the upper bits of the number as a float."""
    kind, whole, bias, mantissa = EXACT[z.type.element.width]
    bits = ir.VectorType(whole, LANES)
    number = builder.uitofp(z, ir.VectorType(kind, LANES))
    upper = builder.lshr(builder.bitcast(number, bits), repeated(mantissa - CLASSES, bits))
    first = (bias + DIRECT.bit_length() - 1 << CLASSES) - DIRECT
    return builder.trunc(builder.sub(upper, repeated(first, bits)), OCTETS)


def _all(like: Any, number: int) -> Any:
    return repeated(number, like.type)
