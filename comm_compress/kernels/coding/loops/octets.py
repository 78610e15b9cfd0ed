"""64 bytes at a time: which lie in an interval, how many there are of each, what a table has for them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from comm_compress.kernels.tools.vectors.llvm import (
    BYTE,
    LONG,
    SHORT,
    WORD,
    call,
    element,
    has_features,
    intrinsic,
    repeated,
    spread,
)

TOGETHER = 64  # a vector's bytes, and a mask's bits
COUNTED = 16  # different ones that are counted
MANY, COUNTING = ir.VectorType(BYTE, TOGETHER), ir.VectorType(BYTE, TOGETHER // 2)


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
def largest(context: Any, octets: Any, i: Any) -> Any:
    """The largest of ``octets[i : i + 64]``: uint8."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets, i = arguments
        found = builder.load(element(context, builder, signature.args[0], octets, i, MANY), align=1)
        return call(builder, f"llvm.vector.reduce.umax.v{TOGETHER}i8", BYTE, [found])

    return types.uint8(octets, types.intp), build


@intrinsic
def add_counts(context: Any, octets: Any, begin: Any, end: Any, low: Any, counts: Any) -> Any:
    """Add to ``counts`` int64 ``[16]`` how many of ``octets[begin : end]`` are ``low`` (uint8), ``low + 1``, ...

    Modulo 256. A multiple of 32 octets, less than 2^13: each of 32 lanes counts to 255. (Comparisons of 64 octets would
    be masks, of which vectors have to be made again.)
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets, begin, end, low, counts = arguments
        before, loop, after = builder.block, *(builder.append_basic_block(name) for name in ("count", "counted"))
        lowest, none = spread(builder, low, COUNTING.count), ir.Constant(COUNTING, None)
        builder.cbranch(builder.icmp_signed("<", begin, end), loop, after)
        builder.position_at_end(loop)
        i, *sums = (builder.phi(kind) for kind in (LONG, *[COUNTING] * COUNTED))
        found = builder.load(element(context, builder, signature.args[0], octets, i, COUNTING), align=1)
        above, more = builder.sub(found, lowest), []
        for k, so_far in enumerate(sums):
            same = builder.icmp_unsigned("==", above, repeated(k, COUNTING))
            more.append(builder.sub(so_far, builder.sext(same, COUNTING)))
        following = builder.add(i, LONG(COUNTING.count))
        for phi, first, later in zip([i, *sums], [begin, *[none] * COUNTED], [following, *more], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, loop)
        builder.cbranch(builder.icmp_signed("<", following, end), loop, after)
        builder.position_at_end(after)
        for k, total in enumerate([builder.phi(COUNTING) for _ in more]):
            total.add_incoming(none, before)
            total.add_incoming(more[k], loop)
            more[k] = total
        for k, total in enumerate(more):
            wide = builder.zext(total, ir.VectorType(WORD, COUNTING.count))
            number = call(builder, f"llvm.vector.reduce.add.v{COUNTING.count}i32", WORD, [wide])
            place = element(context, builder, signature.args[4], counts, LONG(k), LONG)
            builder.store(builder.add(builder.load(place), builder.zext(number, LONG)), place)
        return context.get_dummy_value()

    return types.void(octets, types.intp, types.intp, types.uint8, counts), build


@intrinsic
def look_up(context: Any, octets: Any, i: Any, table: Any) -> Any:
    """``octets[i : i + 64] = table[octets[i : i + 64]]`` by a table of 256 bytes."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets, i, table = arguments
        place = element(context, builder, signature.args[0], octets, i, MANY)
        found = translated(context, builder, signature.args[2], table, builder.load(place, align=1))
        builder.store(found, place, align=1)
        return context.get_dummy_value()

    return types.void(octets, types.intp, table), build


@intrinsic
def reaching(context: Any, octets: Any, contexts: Any, i: Any, least: Any) -> Any:
    """The mask of ``octets[i : i + 64]`` that are no less than ``least[contexts[i : i + 64]]``: uint64.

    ``least``: 256 bytes.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets, contexts, i, least = arguments
        found, rows = (
            builder.load(element(context, builder, kind, array, i, MANY), align=1)
            for kind, array in zip(signature.args, (octets, contexts), strict=False)
        )
        edges = translated(context, builder, signature.args[3], least, rows)
        return builder.bitcast(builder.icmp_unsigned(">=", found, edges), LONG)

    return types.uint64(octets, contexts, types.intp, least), build


@intrinsic
def store_pairs(context: Any, octets: Any, contexts: Any, i: Any, pairs: Any, place: Any) -> Any:
    """``pairs[place : place + 64]`` (uint16) = 256 ``contexts[i : i + 64]`` + ``octets[i : i + 64]``."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets, contexts, i, pairs, place = arguments
        wide = ir.VectorType(SHORT, TOGETHER)
        low, high = (
            builder.zext(builder.load(element(context, builder, kind, array, i, MANY), align=1), wide)
            for kind, array in zip(signature.args, (octets, contexts), strict=False)
        )
        both = builder.or_(builder.shl(high, repeated(BYTE.width, wide)), low)
        builder.store(both, element(context, builder, signature.args[3], pairs, place, wide), align=2)
        return context.get_dummy_value()

    return types.void(octets, contexts, types.intp, pairs, types.intp), build


def translated(context: Any, builder: Any, kind: Any, table: Any, octets: Any) -> Any:
    """What a table of 256 bytes, an array of this numba type, has for 64 of them."""
    if not has_features(context, "avx512vbmi"):
        start, found = element(context, builder, kind, table, LONG(0), BYTE), ir.Constant(MANY, ir.Undefined)
        for lane in range(TOGETHER):
            place = builder.zext(builder.extract_element(octets, WORD(lane)), LONG)
            found = builder.insert_element(found, builder.load(builder.gep(start, [place])), WORD(lane))
        return found
    quarters = [builder.load(element(context, builder, kind, table, LONG(k), MANY), align=1) for k in range(0, 256, 64)]
    low, high = (
        call(builder, "llvm.x86.avx512.vpermi2var.qi.512", MANY, [quarters[k], octets, quarters[k + 1]]) for k in (0, 2)
    )
    return builder.select(builder.icmp_signed("<", octets, repeated(0, MANY)), high, low)
