"""32 small codes and their bytes in vector registers: `bits.reference`'s little-endian bit stream.

Neighbours are joined: two codes in 16 bits, four in 32, eight in 64, until they fill whole bytes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from comm_compress.kernels.tools.vectors.llvm import BYTE, WORD, literal_intrinsic, load_lanes, repeated, store_lanes
from comm_compress.kernels.tools.vectors.vectors import BYTES, LANES


@literal_intrinsic
def store_codes(context: Any, packed: Any, place: Any, end: Any, bits: Any, codes: Any) -> Any:
    """The low ``bits`` (2 to 8, a constant) of 32 codes to ``packed[place : min(place + 4 * bits, end)]``, uint8."""
    if not isinstance(bits, types.IntegerLiteral):
        return None
    width = bits.literal_value

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place, end, _, codes = arguments
        store_lanes(context, builder, signature.args[0], array, place, end, _joined(builder, codes, width))
        return context.get_dummy_value()

    return types.void(packed, types.intp, types.intp, bits, BYTES), build


@literal_intrinsic
def load_codes(context: Any, packed: Any, place: Any, end: Any, bits: Any) -> Any:
    """The 32 codes, in two's complement, that `store_codes` wrote; zeros for bytes from ``end`` on."""
    if not isinstance(bits, types.IntegerLiteral):
        return None
    width = bits.literal_value

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place, end, _ = arguments
        octets = load_lanes(context, builder, signature.args[0], array, place, end, 4 * width)
        return _parted(builder, octets, width)

    return BYTES(packed, types.intp, types.intp, bits), build


def _joined(builder: Any, codes: Any, width: int) -> Any:
    """<32 x i8> to <4 width x i8>."""
    held = 8
    while width % 8:
        held *= 2
        words = ir.VectorType(ir.IntType(held), LANES * 8 // held)
        codes = builder.bitcast(codes, words)
        low = (1 << width) - 1
        first = builder.and_(codes, repeated(low, words))
        second = builder.lshr(codes, repeated(held // 2 - width, words))
        codes = builder.or_(first, builder.and_(second, repeated(low << width, words)))
        width *= 2
    octets = builder.bitcast(codes, ir.VectorType(BYTE, LANES))
    kept = [i for i in range(LANES) if i % (held // 8) < width // 8]
    return _chosen(builder, octets, kept)


def _parted(builder: Any, octets: Any, bits: int) -> Any:
    """<4 bits x i8> to <32 x i8>."""
    held, width = 8, bits
    while width % 8:
        held, width = 2 * held, 2 * width
    full, used = held // 8, width // 8
    codes = _chosen(builder, octets, [i // full * used + min(i % full, used - 1) for i in range(LANES)])
    while width > bits:
        width //= 2
        words = ir.VectorType(ir.IntType(held), LANES * 8 // held)
        codes, low = builder.bitcast(codes, words), (1 << width) - 1
        first = builder.and_(codes, repeated(low, words))
        second = builder.shl(codes, repeated(held // 2 - width, words))
        codes = builder.or_(first, builder.and_(second, repeated(low << held // 2, words)))
        held //= 2
    codes = builder.bitcast(codes, ir.VectorType(BYTE, LANES))
    if bits == BYTE.width:
        return codes
    sign = repeated(1 << (bits - 1), codes.type)
    return builder.sub(builder.xor(codes, sign), sign)


def _chosen(builder: Any, octets: Any, places: list[int]) -> Any:
    return builder.shuffle_vector(octets, octets, ir.Constant(ir.VectorType(WORD, len(places)), places))
