"""What an encoder of rANS looks up for 32 symbols, and how their states absorb them.

A table of 256 numbers of 16 bits is eight registers of AVX-512, which permutes two of them in one instruction: four
such instructions and three choices look up 32 numbers, in less time than 32 loads take. Elsewhere, and where contexts
choose among tables, one number after another is loaded.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from comm_compress.kernels.coding.frequencies import PRECISION, START_BITS, TOTAL
from comm_compress.kernels.coding.loops.rans_lanes import (
    MASK,
    NARROW,
    NUMBERS,
    OCTETS,
    VECTOR,
    gathered,
    places_in,
)
from comm_compress.kernels.tools.vectors.llvm import (
    FLOAT,
    WORD,
    call,
    element,
    has_features,
    intrinsic,
    repeated,
)
from comm_compress.kernels.tools.vectors.vectors import LANES, WORDS

SYMBOLS = 256
HALF = 16  # bits that leave a state together
OVERFLOW = 32 - PRECISION  # a state holds so many bits more than a frequency
REGISTER = ir.VectorType(FLOAT, LANES // 2)
SLIGHTLY_LESS = 1 - 2.0**-21  # than 1: three roundings of 2^-24 each cannot make a quotient too large


@intrinsic
def entries_at(context: Any, entries: Any, planes: Any, symbols: Any, contexts: Any, i: Any) -> Any:
    """The `entries_of` ``symbols[i : i + 32]``, from uint32 ``entries`` ``[contexts, 256]``; contexts may be None.

    ``planes`` uint16 ``[512]``: without contexts, the entries' frequencies, then their starts.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (entries, planes, symbols, contexts, i), kinds = arguments, signature.args
        octets = builder.load(element(context, builder, kinds[2], symbols, i, OCTETS), align=1)
        if isinstance(kinds[3], types.NoneType) and has_features(context, "avx512bw"):
            frequencies, starts = (_permuted(context, builder, kinds[1], planes, plane, octets) for plane in range(2))
            high = builder.shl(builder.zext(frequencies, VECTOR), repeated(START_BITS, VECTOR))
            return builder.or_(high, builder.zext(starts, VECTOR))
        places = places_in(context, builder, kinds[3], contexts, i, SYMBOLS, builder.zext(octets, VECTOR))
        return gathered(context, builder, kinds[0], entries, places)

    return WORDS(entries, planes, symbols, contexts, types.intp), build


def _permuted(context: Any, builder: Any, kind: Any, planes: Any, plane: int, octets: Any) -> Any:
    """The numbers of 32 symbols in a table of 256, as 16 bits each."""
    places = builder.zext(octets, NARROW)
    quarters = []
    for first in range(plane * SYMBOLS, (plane + 1) * SYMBOLS, 2 * LANES):
        low, high = (
            builder.load(element(context, builder, kind, planes, ir.Constant(ir.IntType(64), at), NARROW), align=2)
            for at in (first, first + LANES)
        )
        quarters.append(call(builder, "llvm.x86.avx512.vpermi2var.hi.512", NARROW, [low, places, high]))
    zero = repeated(0, OCTETS)
    odd, upper = (builder.icmp_unsigned("!=", builder.and_(octets, repeated(bit, OCTETS)), zero) for bit in (64, 128))
    low, high = (builder.select(odd, quarters[k + 1], quarters[k]) for k in (0, 2))
    return builder.select(upper, high, low)


@intrinsic
def overflowing(context: Any, x: Any, entries: Any) -> Any:
    """The mask of states that cannot absorb symbols of these `entries_of` before they put out."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, entries = arguments
        frequencies = builder.lshr(entries, repeated(START_BITS, VECTOR))
        high = builder.lshr(x, repeated(OVERFLOW, VECTOR))
        return builder.bitcast(builder.icmp_unsigned(">=", high, frequencies), WORD)

    return types.uint32(WORDS, WORDS), build


@intrinsic
def absorbed(context: Any, x: Any, mask: Any, entries: Any) -> Any:
    """The states after symbols of these entries; those in the mask have put out their low halves.

        (x // f) 2^12 + x % f + start

    by a reciprocal that is a little too small, so that the quotient is the right one or 1 less.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, mask, entries = arguments
        x = builder.select(builder.bitcast(mask, MASK), builder.lshr(x, repeated(HALF, VECTOR)), x)
        f = builder.lshr(entries, repeated(START_BITS, VECTOR))
        start = builder.and_(entries, repeated((1 << START_BITS) - 1, VECTOR))
        share = builder.fmul(builder.uitofp(x, NUMBERS), _reciprocal(context, builder, f))
        quotient = builder.fptosi(share, VECTOR)
        rest = builder.sub(x, builder.mul(quotient, f))
        after = builder.add(builder.add(builder.shl(quotient, repeated(PRECISION, VECTOR)), rest), start)
        one_more = builder.add(after, builder.sub(repeated(TOTAL, VECTOR), f))
        return builder.select(builder.icmp_unsigned(">=", rest, f), one_more, after)

    return WORDS(WORDS, types.uint32, WORDS), build


def _reciprocal(context: Any, builder: Any, f: Any) -> Any:
    """(1 - 2^-21) / f, to 2^-24 of it."""
    numbers, less = builder.sitofp(f, NUMBERS), repeated(SLIGHTLY_LESS, NUMBERS)
    if not has_features(context, "avx512f"):
        return builder.fdiv(less, numbers)
    halves = []
    for first in (0, LANES // 2):
        lanes = ir.Constant(ir.VectorType(WORD, LANES // 2), list(range(first, first + LANES // 2)))
        half = builder.shuffle_vector(numbers, numbers, lanes)
        nothing, all_ = ir.Constant(REGISTER, None), ir.IntType(16)(-1)
        halves.append(call(builder, "llvm.x86.avx512.rcp14.ps.512", REGISTER, [half, nothing, all_]))
    about = builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(WORD, LANES), list(range(LANES))))
    # to 2^-14; a step of Newton's makes it 2^-28
    lacking = _fma(builder, builder.fneg(numbers), about, less)
    return _fma(builder, about, lacking, about)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return call(builder, f"llvm.fma.v{LANES}f32", NUMBERS, [a, b, c])
