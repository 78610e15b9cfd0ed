"""64 bytes at a time: which lie in an interval, and how many there are of each near zero."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from comm_compress.kernels.cpu.vectors.llvm import BYTE, LONG, element, intrinsic, repeated, spread

TOGETHER = 64  # a vector's bytes, and a mask's bits
NEAR = 16  # numbers that are near zero: from -8 to 7
MANY = ir.VectorType(BYTE, TOGETHER)


@intrinsic
def within(context: Any, octets: Any, i: Any, low: Any, width: Any) -> Any:
    """The mask of ``octets[i : i + 64]`` from ``low`` (uint8) to ``low + width``, modulo 256: uint64."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets, i, low, width = arguments
        found = builder.load(element(context, builder, signature.args[0], octets, i, MANY), align=1)
        above = builder.sub(found, spread(builder, low, TOGETHER))
        return builder.bitcast(builder.icmp_unsigned("<=", above, spread(builder, width, TOGETHER)), LONG)

    return types.uint64(octets, types.intp, types.uint8, types.uint8), build


@intrinsic
def far_from_zero(context: Any, octets: Any, i: Any) -> Any:
    """The mask of ``octets[i : i + 64]`` that are not near zero, uint64, and how many these are."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shifted = _shifted(context, builder, signature, arguments)
        far = builder.bitcast(builder.icmp_unsigned(">=", shifted, repeated(NEAR, MANY)), LONG)
        return context.make_tuple(builder, signature.return_type, (far, builder.ctpop(far)))

    return types.Tuple((types.uint64, types.int64))(octets, types.intp), build


@intrinsic
def add_near_zero(context: Any, octets: Any, i: Any, counts: Any) -> Any:
    """Add to ``counts`` int64 ``[16]`` how many of ``octets[i : i + 64]`` are -8, -7, ..., 7."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shifted = _shifted(context, builder, signature, arguments)
        for k in range(NEAR):
            same = builder.bitcast(builder.icmp_unsigned("==", shifted, repeated(k, MANY)), LONG)
            place = element(context, builder, signature.args[2], arguments[2], LONG(k), LONG)
            builder.store(builder.add(builder.load(place), builder.ctpop(same)), place)
        return context.get_dummy_value()

    return types.void(octets, types.intp, counts), build


def _shifted(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The bytes, so that those near zero are 0, 1, ..., 15."""
    place = element(context, builder, signature.args[0], arguments[0], arguments[1], MANY)
    return builder.add(builder.load(place, align=1), repeated(NEAR // 2, MANY))
