"""32 states of rANS in vector registers: the steps that `entropy.reference` takes for a group of 32 symbols.

Some of them LLVM makes slow code of by itself: looking up 32 numbers, and moving 16-bit words together or apart by a
mask. Where the machine has AVX-512's instructions for these they are named; elsewhere plain loads and stores, one
lane after the other and without branches, take their place. (Whether a state overflows is a coin toss that no
processor predicts.)
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from comm_compress.kernels.coding.frequencies import FREQUENCY, PRECISION, TOTAL, WITHIN
from comm_compress.kernels.coding.rans_stream import LANES as STATES, LOWEST
from comm_compress.kernels.tools.vectors.llvm import (
    BOOL,
    BYTE,
    FLOAT,
    LONG,
    SHORT,
    WORD,
    call,
    element,
    has_features,
    intrinsic,
    repeated,
)
from comm_compress.kernels.tools.vectors.together import load_apart, store_together
from comm_compress.kernels.tools.vectors.vectors import LANES, WORDS

assert STATES == LANES
HALF = 16  # bits that leave a state together
OVERFLOW = 32 - PRECISION  # a state holds so many bits more than a frequency
VECTOR, NARROW, OCTETS, MASK, NUMBERS = (ir.VectorType(kind, LANES) for kind in (WORD, SHORT, BYTE, BOOL, FLOAT))
GATHERED = 16  # numbers that one instruction looks up


@intrinsic
def load_states(context: Any, states: Any) -> Any:
    """32 states from a uint32 array of as many."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_first(context, builder, signature.args[0], arguments[0], VECTOR), align=4)

    return WORDS(states), build


@intrinsic
def store_states(context: Any, states: Any, x: Any) -> Any:
    """Write 32 states to a uint32 array of as many."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _first(context, builder, signature.args[0], arguments[0], VECTOR), align=4)
        return context.get_dummy_value()

    return types.void(states, WORDS), build


@intrinsic
def slot_places(context: Any, x: Any, contexts: Any, i: Any) -> Any:
    """Where tables ``[contexts, 2^12]`` have the slots that states are in."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (x, contexts, i), of_contexts = arguments, signature.args[1]
        return places_in(
            context, builder, of_contexts, contexts, i, TOTAL, builder.and_(x, repeated(TOTAL - 1, VECTOR))
        )

    return WORDS(WORDS, contexts, types.intp), build


@intrinsic
def looked_up(context: Any, table: Any, places: Any) -> Any:
    """``table[places]`` of a uint32 array."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return gathered(context, builder, signature.args[0], *arguments)

    return WORDS(table, WORDS), build


@intrinsic
def put_out(context: Any, words: Any, place: Any, x: Any, mask: Any) -> Any:
    """From ``words[place]`` (uint16) on the low halves of the states in a mask; up to 32 words are written."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, place, x, mask = arguments
        start = element(context, builder, signature.args[0], words, place, SHORT)
        store_together(context, builder, builder.trunc(x, NARROW), builder.bitcast(mask, MASK), start)
        return context.get_dummy_value()

    return types.void(words, types.intp, WORDS, types.uint32), build


@intrinsic
def store_symbols(context: Any, symbols: Any, i: Any, slots: Any) -> Any:
    """``symbols[i : i + 32]``: the symbols of slots, their low bytes."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        symbols, i, slots = arguments
        place = element(context, builder, signature.args[0], symbols, i, OCTETS)
        builder.store(builder.trunc(slots, OCTETS), place, align=1)
        return context.get_dummy_value()

    return types.void(symbols, types.intp, WORDS), build


@intrinsic
def released(context: Any, x: Any, slots: Any) -> Any:
    """The states before the symbols of these `slots_of` were absorbed."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, slots = arguments
        high = builder.lshr(x, repeated(PRECISION, VECTOR))
        fewer = builder.lshr(slots, repeated(FREQUENCY, VECTOR))
        within = builder.and_(builder.lshr(slots, repeated(WITHIN, VECTOR)), repeated(TOTAL - 1, VECTOR))
        return builder.add(builder.add(builder.mul(fewer, high), high), within)

    return WORDS(WORDS, WORDS), build


@intrinsic
def too_small(context: Any, x: Any) -> Any:
    """The mask of states that lack their low halves."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.icmp_unsigned("<", arguments[0], repeated(LOWEST, VECTOR)), WORD)

    return types.uint32(WORDS), build


@intrinsic
def refilled(context: Any, x: Any, mask: Any, words: Any, place: Any) -> Any:
    """The states in a mask with their low halves from ``words[place]`` on; 32 words are read."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, mask, words, place = arguments
        chosen = builder.bitcast(mask, MASK)
        start = element(context, builder, signature.args[2], words, place, SHORT)
        apart = load_apart(context, builder, ir.Constant(NARROW, None), chosen, start)
        longer = builder.or_(builder.shl(x, repeated(HALF, VECTOR)), builder.zext(apart, VECTOR))
        return builder.select(chosen, longer, x)

    return WORDS(WORDS, types.uint32, words, types.intp), build


def _first(context: Any, builder: Any, kind: Any, array: Any, type_: ir.Type) -> Any:
    return element(context, builder, kind, array, LONG(0), type_)


def _octets(context: Any, builder: Any, kind: Any, octets: Any, i: Any) -> Any:
    return builder.zext(builder.load(element(context, builder, kind, octets, i, OCTETS), align=1), VECTOR)


def places_in(context: Any, builder: Any, kind: Any, contexts: Any, i: Any, columns: int, places: Any) -> Any:
    """Places in the rows that contexts choose, if there are any."""
    if isinstance(kind, types.NoneType):
        return places
    rows = _octets(context, builder, kind, contexts, i)
    return builder.add(builder.mul(rows, repeated(columns, VECTOR)), places)


def gathered(context: Any, builder: Any, kind: Any, table: Any, places: Any) -> Any:
    """The uint32 numbers that an array of this numba type has in 32 places."""
    start = _first(context, builder, kind, table, WORD)
    if has_features(context, "avx512f"):
        return _by_instruction(builder, start, places)
    found = ir.Constant(VECTOR, ir.Undefined)
    for lane in range(LANES):
        place = builder.zext(builder.extract_element(places, WORD(lane)), LONG)
        found = builder.insert_element(found, builder.load(builder.gep(start, [place])), WORD(lane))
    return found


def _by_instruction(builder: Any, start: Any, places: Any) -> Any:
    kind, parts = ir.VectorType(WORD, GATHERED), []
    start, all_ = builder.bitcast(start, BYTE.as_pointer()), repeated(True, ir.VectorType(BOOL, GATHERED))
    for first in range(0, LANES, GATHERED):
        some = _lanes(builder, places, places, range(first, first + GATHERED))
        arguments = [ir.Constant(kind, None), start, some, all_, WORD(WORD.width // 8)]
        parts.append(call(builder, "llvm.x86.avx512.mask.gather.dpi.512", kind, arguments))
    low, high = parts
    return _lanes(builder, low, high, range(LANES))


def _lanes(builder: Any, a: Any, b: Any, lanes: range) -> Any:
    """These lanes of two vectors, one after the other."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(WORD, len(lanes)), list(lanes)))
