"""Memory from any byte on: 64 bits, or as many bytes as one likes."""

from __future__ import annotations

from typing import Any

from numba.core import types

from comm_compress.kernels.tools.vectors.llvm import BOOL, BYTE, LONG, copy_memory, element, intrinsic


@intrinsic
def load_word(context: Any, octets: Any, start: Any) -> Any:
    """uint64: eight bytes from any place of a uint8 array."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets, start = arguments
        return builder.load(element(context, builder, signature.args[0], octets, start, LONG), align=1)

    return types.uint64(octets, types.intp), build


@intrinsic
def store_word(context: Any, octets: Any, start: Any, word: Any) -> Any:
    """Write a uint64, eight bytes, to any place of a uint8 array."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets, start, word = arguments
        builder.store(word, element(context, builder, signature.args[0], octets, start, LONG), align=1)
        return context.get_dummy_value()

    return types.void(octets, types.intp, types.uint64), build


@intrinsic
def lowest_bit(context: Any, mask: Any) -> Any:
    """int64: the place of the lowest one in a uint64 that is not zero."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], BOOL(1))

    return types.int64(types.uint64), build


@intrinsic
def ones_in(context: Any, mask: Any) -> Any:
    """int64: how many ones a uint64 has."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), build


@intrinsic
def copy_bytes(context: Any, target: Any, place: Any, source: Any, start: Any, count: Any) -> Any:
    """``target[place : place + count] = source[start : start + count]`` of uint8 arrays that do not overlap.

    numba's own loop looks for an overlap and goes byte by byte.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, place, source, start, count = arguments
        to = element(context, builder, signature.args[0], target, place, BYTE)
        from_ = element(context, builder, signature.args[2], source, start, BYTE)
        copy_memory(builder, to, from_, count)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), build
