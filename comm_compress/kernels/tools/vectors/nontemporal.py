"""Memory before and after the caches: what is read early, and results that are written past them.

An ordinary store first reads the line that it will overwrite. What nobody reads again before it has left the caches
(a residual that waits for the next step) is written without that read. Such stores are ordered with no others, not
even by the locks that threads hand work over with: a thread that has streamed ends its part with `fence`.

A kernel that reads a block twice reads memory only half of the time, and in bursts that a processor does not foresee:
while it computes, memory waits. Such a kernel asks for the next block on its second way
through one (`residual.cpu.prefetch_target`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from comm_compress.kernels.tools.vectors.llvm import BYTE, CACHE_LINE, LONG, WORD, call, element, intrinsic, store_lanes
from comm_compress.kernels.tools.vectors.vectors import FLOATS, LANES, narrowed

NEAR = 4096  # elements of a block that are still in the first-level cache when they are read again
FAR = 1 << 20  # elements of a result that will have left the second-level cache when it is read
POINTER = BYTE.as_pointer()


@intrinsic
def stream(context: Any, values: Any, i: Any, end: Any, x: Any) -> Any:
    """As `vectors.store`, past the caches if 32 elements are left and begin a cache line."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, (array, i, end, x) = signature.args[0], arguments
        x = narrowed(builder, kind.dtype, x)
        place = element(context, builder, kind, array, i, x.type)
        inside = builder.and_(builder.ptrtoint(place, LONG), LONG(CACHE_LINE - 1))
        begins = builder.icmp_unsigned("==", inside, LONG(0))
        whole = builder.icmp_signed(">=", builder.sub(end, i), i.type(LANES))
        with builder.if_else(builder.and_(begins, whole), likely=True) as (then, otherwise):
            with then:
                stored = builder.store(x, place, align=CACHE_LINE)
                stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(WORD, 1)]))
            with otherwise:
                store_lanes(context, builder, kind, array, i, end, x)
        return context.get_dummy_value()

    return types.void(values, types.intp, types.intp, FLOATS), build


@intrinsic
def fence(context: Any) -> Any:
    """What was streamed is seen by other threads before anything that follows."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), build


def prefetch(context: Any, builder: Any, kind: Any, array: Any, i: Any) -> None:
    """Inside an intrinsic: the 32 elements from the i-th on will be read soon; they need not exist."""
    lanes = ir.VectorType(context.get_data_type(kind.dtype), LANES)
    place = builder.bitcast(element(context, builder, kind, array, i, lanes), POINTER)
    for line in range(0, LANES * kind.dtype.bitwidth // 8, CACHE_LINE):
        to_read, keep, data = WORD(0), WORD(3), WORD(1)
        call(builder, "llvm.prefetch.p0i8", ir.VoidType(), [builder.gep(place, [LONG(line)]), to_read, keep, data])


@intrinsic
def to_line(context: Any, values: Any, i: Any) -> Any:
    """How many elements of float32 ``values`` lie between its i-th and the first one from there that begins a line."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, i = arguments
        place = element(context, builder, signature.args[0], array, i, WORD)
        bytes_ = builder.and_(builder.neg(builder.ptrtoint(place, LONG)), LONG(CACHE_LINE - 1))
        return builder.lshr(bytes_, LONG(2))

    return types.intp(values, types.intp), build
