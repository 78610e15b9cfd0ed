"""What intrinsics share: pieces of numba kernels in LLVM's own words, for what numba has no name for.

An intrinsic tells numba its types and a function that builds its instructions. None of them names an instruction set:
LLVM makes of vectors of any length what the machine has. Places in arrays are not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending
from numba.core import cgutils

Function = Callable[..., Any]
intrinsic: Callable[[Function], Function] = extending.intrinsic  # numba's own annotations are missing or wrong
literal_intrinsic: Callable[[Function], Function] = extending.intrinsic(prefer_literal=True)
_alloca_once: Any = cgutils.alloca_once
_raw_memcpy: Any = cgutils.raw_memcpy
_get_or_insert_function: Any = cgutils.get_or_insert_function

FLOAT, DOUBLE, HALF = ir.FloatType(), ir.DoubleType(), ir.HalfType()
BOOL, BYTE, SHORT, WORD, LONG = (ir.IntType(width) for width in (1, 8, 16, 32, 64))
CACHE_LINE = 64  # bytes


def element(context: Any, builder: Any, kind: Any, array: Any, i: Any, type_: ir.Type) -> Any:
    """Pointer to a ``type_`` that begins at element i of a contiguous array, whose numba type is ``kind``."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [i]), type_.as_pointer())


def array_size(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """How many elements it has."""
    return context.make_array(kind)(context, builder, array).nitems


def has_features(context: Any, *names: str) -> bool:
    """Does the processor that code is made for have these, as LLVM calls them?"""
    _, _, features = context.codegen().magic_tuple()
    return all(f"+{name}" in features.split(",") for name in names)


def repeated(number: float, vector: ir.VectorType) -> Any:
    """A constant in every lane of a vector of this type."""
    return ir.Constant(vector, [number] * vector.count)


def spread(builder: Any, number: Any, lanes: int) -> Any:
    """A number that is known at run time in every lane."""
    one = builder.insert_element(ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined), number, WORD(0))
    return builder.shuffle_vector(one, one, repeated(0, ir.VectorType(WORD, lanes)))


def call(builder: Any, name: str, result: ir.Type, arguments: list[Any]) -> Any:
    """One of LLVM's own functions."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(_get_or_insert_function(builder.module, kind, name), arguments)


def copy_memory(builder: Any, target: Any, source: Any, count: Any) -> None:
    """Copy ``count`` bytes between pointers to bytes."""
    _raw_memcpy(builder, target, source, count, 1)


def load_lanes(context: Any, builder: Any, kind: Any, array: Any, i: Any, end: Any, lanes: int) -> Any:
    """``array[i : min(i + lanes, end)]``, then zeros, as a vector."""
    vector, width = ir.VectorType(context.get_data_type(kind.dtype), lanes), kind.dtype.bitwidth // 8
    pointer = element(context, builder, kind, array, i, vector)
    spare = _alloca_once(builder, vector)
    left = builder.sub(end, i)
    whole = builder.icmp_signed(">=", left, left.type(lanes))
    with builder.if_else(whole, likely=True) as (then, otherwise):
        with then:
            all_ = builder.load(pointer, align=width)
            after_all = builder.block
        with otherwise:
            builder.store(ir.Constant(vector, None), spare)
            _raw_memcpy(builder, spare, pointer, left, width)
            some = builder.load(spare)
            after_some = builder.block
    loaded = builder.phi(vector)
    loaded.add_incoming(all_, after_all)
    loaded.add_incoming(some, after_some)
    return loaded


def store_lanes(context: Any, builder: Any, kind: Any, array: Any, i: Any, end: Any, x: Any) -> None:
    """``array[i : min(i + lanes, end)]`` = as many elements of the vector ``x``."""
    pointer, width = element(context, builder, kind, array, i, x.type), kind.dtype.bitwidth // 8
    spare = _alloca_once(builder, x.type)
    left = builder.sub(end, i)
    whole = builder.icmp_signed(">=", left, left.type(x.type.count))
    with builder.if_else(whole, likely=True) as (then, otherwise):
        with then:
            builder.store(x, pointer, align=width)
        with otherwise:
            builder.store(x, spare)
            _raw_memcpy(builder, pointer, spare, left, width)
