"""Vector operations that numba has no name for, in LLVM's own words: each CPU gets its best form of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils as untyped_cgutils

cgutils: Any = untyped_cgutils
intrinsic: Callable[[Callable[..., Any]], Callable[..., Any]] = extending.intrinsic
AT_ONCE = 64  # elements: a mask of 64 bits tells about each
WINDOW = 32  # elements: a word of 32 bits tells the sign of each
CACHE_LINE = 64  # bytes
_LANE, _MASK = ir.IntType(32), ir.IntType(64)
_KEYS, _FLOATS = ir.VectorType(_LANE, AT_ONCE), ir.VectorType(ir.FloatType(), AT_ONCE)


@intrinsic
def reaching(_: Any, keys: Any, start: Any, floor: Any) -> Any:
    """uint64: bit i tells whether ``keys[start + i]`` (int32, without its sign bit) is at least ``floor``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        keys = builder.load(_place(context, builder, signature, arguments, 0, 1, _KEYS), align=4)
        return _reaching(builder, keys, arguments[2])

    return types.uint64(keys, types.int64, types.int32), generate


@intrinsic
def store_sum_reaching(_: Any, rows: Any, old: Any, decay: Any, target: Any, start: Any, floor: Any) -> Any:
    """``target[start + i] = rows[start + i] + decay * old[start + i]`` for 64 floats, and which of them are `reaching`.

    ``target[start]`` begins a cache line. The sums bypass the caches, into which their places would first have to be
    read: three streams instead of four.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        addend, waiting = (
            builder.load(_place(context, builder, signature, arguments, array, 4, _FLOATS), align=4) for array in (0, 1)
        )
        total = builder.fadd(addend, builder.fmul(waiting, _repeated(builder, arguments[2])))
        store = builder.store(total, _place(context, builder, signature, arguments, 3, 4, _FLOATS), align=CACHE_LINE)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_LANE, 1)]))
        return _reaching(builder, builder.bitcast(total, _KEYS), arguments[5])

    return types.uint64(rows, old, types.float32, target, types.int64, types.int32), generate


@intrinsic
def add_signed(_: Any, source: Any, start: Any, signs: Any, target: Any, place: Any) -> Any:
    """``target[place + i] += source[start + i]`` for 32 floats, negated where bit i of the uint32 ``signs`` is one."""
    return types.void(source, types.int64, types.uint32, target, types.int64), functools.partial(_write_signed, True)


@intrinsic
def copy_signed(_: Any, source: Any, start: Any, signs: Any, target: Any, place: Any) -> Any:
    """The same, ``=`` instead of ``+=``."""
    return types.void(source, types.int64, types.uint32, target, types.int64), functools.partial(_write_signed, False)


def _write_signed(add: bool, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    words, floats = ir.VectorType(_LANE, WINDOW), ir.VectorType(ir.FloatType(), WINDOW)
    numbers = builder.load(_place(context, builder, signature, arguments, 0, 1, words), align=4)
    to_the_top = ir.Constant(words, [WINDOW - 1 - i for i in range(WINDOW)])
    flips = builder.shl(_repeated(builder, arguments[2], WINDOW), to_the_top)
    flips = builder.and_(flips, ir.Constant(words, [1 << 31] * WINDOW))
    signed = builder.bitcast(builder.xor(numbers, flips), floats)
    target = _place(context, builder, signature, arguments, 3, 4, floats)
    builder.store(builder.fadd(builder.load(target, align=4), signed) if add else signed, target, align=4)
    return context.get_dummy_value()


@intrinsic
def lowest_bit(_: Any, mask: Any) -> Any:
    """int64: the place of the lowest one in a uint64 that is not zero."""
    return types.int64(types.uint64), lambda context, builder, signature, arguments: builder.cttz(
        arguments[0], ir.Constant(ir.IntType(1), 1)
    )


@intrinsic
def load_word(_: Any, octets: Any, start: Any) -> Any:
    """uint64: eight bytes from any place of a uint8 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_place(context, builder, signature, arguments, 0, 1, _MASK), align=1)

    return types.uint64(octets, types.int64), generate


@intrinsic
def store_word(_: Any, octets: Any, start: Any, word: Any) -> Any:
    """The same to be written."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _place(context, builder, signature, arguments, 0, 1, _MASK), align=1)
        return context.get_dummy_value()

    return types.void(octets, types.int64, types.uint64), generate


def _place(context: Any, builder: Any, signature: Any, arguments: Any, array: int, index: int, vector: Any) -> Any:
    """Pointer to the vector or word that begins at an element of a contiguous array; which ones, by argument number."""
    data = cgutils.create_struct_proxy(signature.args[array])(context, builder, value=arguments[array]).data
    return builder.bitcast(builder.gep(data, [arguments[index]]), vector.as_pointer())


def _reaching(builder: Any, keys: Any, floor: Any) -> Any:
    magnitudes = builder.and_(keys, ir.Constant(_KEYS, [0x7FFFFFFF] * AT_ONCE))
    return builder.bitcast(builder.icmp_signed(">=", magnitudes, _repeated(builder, floor)), _MASK)


def _repeated(builder: Any, value: Any, times: int = AT_ONCE) -> Any:
    nowhere = ir.Constant(ir.VectorType(value.type, times), ir.Undefined)
    first = builder.insert_element(nowhere, value, ir.Constant(_LANE, 0))
    return builder.shuffle_vector(first, nowhere, ir.Constant(ir.VectorType(_LANE, times), [0] * times))
