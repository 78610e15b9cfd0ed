"""32 floats at a time: LLVM's vectors as values in numba kernels.

LLVM makes vector instructions of a plain loop over a contiguous slice, and most kernels are such loops. Some things it
does badly or not at all: comparisons to the bits of a mask (one instruction on AVX-512, a few elsewhere) and back,
32 running sums in registers, float16. There a kernel says which vectors it means:

    x = load(values, i, end)                 # values[i : min(i + 32, end)], then zeros
    mask = at_least(x, 0)                    # uint32, bit j: x[j] >= 0
    sums = sums + doubles(where(mask, x, splat(0)))
    store_mask(bits, i // 8, end - i, mask)

Nothing here names an instruction set; LLVM makes of it what the machine has. Places are not checked. Arrays have one
dimension and are contiguous; in memory numbers may be narrower: see `bits_of`. Masks are plain uint32.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from llvmlite import ir
from numba import extending
from numba.core import imputils, types
from numba.core.datamodel import models
from numba.core.typing import templates
from torch import Tensor

from comm_compress.kernels.tools.compiled import MAGNITUDE, Array
from comm_compress.kernels.tools.vectors.llvm import (
    BOOL,
    BYTE,
    DOUBLE,
    FLOAT,
    HALF,
    LONG,
    SHORT,
    WORD,
    Function,
    call,
    intrinsic,
    load_lanes,
    repeated,
    spread,
    store_lanes,
)

infer_global: Any = templates.infer_global
signature_of: Any = templates.signature
lower_builtin: Any = imputils.lower_builtin

LANES = 32
NARROW = {torch.float16: torch.int16, torch.bfloat16: torch.uint16}
QUIET_NAN = 0x7FC0  # bfloat16's


def bits_of(tensor: Tensor) -> Array:
    """A CPU tensor of any float dtype as the array that `load` and `store` take: float32 or, narrower, its bits.

    numba knows neither bfloat16 (uint16 here) nor float16 (int16). `load` takes float32's bits (int32) as well.
    """
    narrow = NARROW.get(tensor.dtype)
    array: Array = (tensor if narrow is None else tensor.view(narrow)).numpy()
    return array


def rows_in_line(rows: Tensor) -> tuple[Array, int]:
    """One such array over all of ``rows`` ``[R, m]`` and the gaps between them, and how far apart they begin."""
    num_rows, m = rows.shape
    assert num_rows
    if rows.is_contiguous():
        return bits_of(rows).reshape(-1), m
    assert m <= 1 or rows.stride(1) == 1
    return bits_of(rows.as_strided(((num_rows - 1) * rows.stride(0) + m,), (1,))), rows.stride(0)


def _vector(element: ir.Type) -> ir.VectorType:
    return ir.VectorType(element, LANES)


class Vector(types.Type):
    """The type of 32 numbers."""


# float32, float64, int8, uint32
FLOATS, DOUBLES, BYTES, WORDS = (Vector(name) for name in ("floats", "doubles", "bytes", "words"))
ELEMENTS = {FLOATS: FLOAT, DOUBLES: DOUBLE, BYTES: BYTE, WORDS: WORD}


class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, _vector(ELEMENTS[kind]))  # type: ignore[no-untyped-call]


extending.register_model(Vector)(_VectorModel)


# ---- memory -----------------------------------------------------------------------------------------------------


@intrinsic
def load(context: Any, values: Any, i: Any, end: Any) -> Any:
    """``values[i : min(i + 32, end)]`` as floats, zeros after it; of float32, float16 or bfloat16 (see `bits_of`)."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, (array, i, end) = signature.args[0], arguments
        return widened(builder, kind.dtype, load_lanes(context, builder, kind, array, i, end, LANES))

    return FLOATS(values, types.intp, types.intp), build


@intrinsic
def store(context: Any, values: Any, i: Any, end: Any, x: Any) -> Any:
    """``values[i : min(i + 32, end)] = x``, rounded to nearest even where the array is narrower."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, (array, i, end, x) = signature.args[0], arguments
        store_lanes(context, builder, kind, array, i, end, narrowed(builder, kind.dtype, x))
        return context.get_dummy_value()

    return types.void(values, types.intp, types.intp, FLOATS), build


@intrinsic
def rounded(context: Any, values: Any, x: Any) -> Any:
    """What `load` would read after `store` had written ``x`` to ``values``."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        dtype = signature.args[0].dtype
        return widened(builder, dtype, narrowed(builder, dtype, arguments[1]))

    return FLOATS(values, FLOATS), build


@intrinsic
def load_mask(context: Any, bits: Any, place: Any, count: Any) -> Any:
    """The bits of ``bits[place : place + 4]`` (uint8); fewer bytes, and then zeros, where ``count`` bits are left."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place, end = _as_bytes(builder, arguments[0], *arguments[1:])
        bytes_ = load_lanes(context, builder, signature.args[0], array, place, end, WORD.width // BYTE.width)
        return builder.bitcast(bytes_, WORD)

    return types.uint32(bits, types.intp, types.intp), build


@intrinsic
def store_mask(context: Any, bits: Any, place: Any, count: Any, mask: Any) -> Any:
    """``bits[place : place + 4] = mask`` (uint8); fewer bytes, its last bits zero, where ``count`` bits are left."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place, end = _as_bytes(builder, *arguments[:3])
        count, mask = arguments[2:]
        whole = builder.icmp_signed(">=", count, count.type(LANES))
        kept = builder.sub(builder.shl(WORD(1), builder.trunc(count, WORD)), WORD(1))
        mask = builder.select(whole, mask, builder.and_(mask, kept))
        mask = builder.bitcast(mask, ir.VectorType(BYTE, WORD.width // BYTE.width))
        store_lanes(context, builder, signature.args[0], array, place, end, mask)
        return context.get_dummy_value()

    return types.void(bits, types.intp, types.intp, types.uint32), build


def _as_bytes(builder: Any, array: Any, place: Any, count: Any) -> tuple[Any, Any, Any]:
    """Where the bytes of ``count`` bits end."""
    num_bytes = builder.ashr(builder.add(count, count.type(7)), count.type(3))
    return array, place, builder.add(place, num_bytes)


def widened(builder: Any, dtype: Any, x: Any) -> Any:
    """What `load` makes of the bits of an array of this dtype."""
    if dtype == types.int16:
        return builder.fpext(builder.bitcast(x, _vector(HALF)), _vector(FLOAT))
    if dtype == types.uint16:
        return builder.bitcast(builder.shl(builder.zext(x, _vector(WORD)), _all(WORD, 16)), _vector(FLOAT))
    return builder.bitcast(x, _vector(FLOAT))


def narrowed(builder: Any, dtype: Any, x: Any) -> Any:
    """What `store` writes to an array of this dtype."""
    if dtype == types.int16:
        return builder.bitcast(builder.fptrunc(x, _vector(HALF)), _vector(SHORT))
    return _to_bfloat16(builder, x) if dtype == types.uint16 else x


def _to_bfloat16(builder: Any, x: Any) -> Any:
    """Round to the nearest bfloat16, ties to even (the machine's own instruction turns denormals into zeros)."""
    bits = builder.bitcast(x, _vector(WORD))
    odd = builder.and_(builder.lshr(bits, _all(WORD, 16)), _all(WORD, 1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, _all(WORD, 0x7FFF))), _all(WORD, 16))
    narrow = builder.select(builder.fcmp_unordered("uno", x, x), _all(WORD, QUIET_NAN), rounded)
    return builder.trunc(narrow, _vector(SHORT))


# ---- arithmetic -------------------------------------------------------------------------------------------------


def _all(element: ir.Type, number: float) -> Any:
    return repeated(number, _vector(element))


@intrinsic
def splat(context: Any, number: Any) -> Any:
    """A float32 number 32 times."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return spread(builder, arguments[0], LANES)

    return FLOATS(types.float32), build


@intrinsic
def doubles(context: Any, x: Any) -> Any:
    """32 floats as float64."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(arguments[0], _vector(DOUBLE))

    return DOUBLES(FLOATS), build


@intrinsic
def sum_of_pairs(context: Any, x: Any) -> Any:
    """The sum of 32 doubles as float64: neighbouring pairs are added until one number is left."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, lanes = arguments[0], LANES
        while lanes > 1:
            lanes //= 2
            half = ir.VectorType(WORD, lanes)
            even, odd = ([2 * j + k for j in range(lanes)] for k in (0, 1))
            left, right = (builder.shuffle_vector(x, x, ir.Constant(half, places)) for places in (even, odd))
            x = builder.fadd(left, right)
        return builder.extract_element(x, WORD(0))

    return types.float64(DOUBLES), build


@intrinsic
def magnitudes(context: Any, x: Any) -> Any:
    """The magnitudes of 32 floats."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, f"llvm.fabs.v{LANES}f32", _vector(FLOAT), arguments)

    return FLOATS(FLOATS), build


@intrinsic
def floor(context: Any, x: Any) -> Any:
    """The largest whole numbers that are not larger."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, f"llvm.floor.v{LANES}f32", _vector(FLOAT), arguments)

    return FLOATS(FLOATS), build


@intrinsic
def clamped(context: Any, x: Any, low: Any, high: Any) -> Any:
    """The nearest to ``x`` between ``low`` and ``high``, all of them vectors of finite numbers."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, low, high = arguments
        x = builder.select(builder.fcmp_ordered("<", x, high), x, high)
        return builder.select(builder.fcmp_ordered(">", x, low), x, low)

    return FLOATS(FLOATS, FLOATS, FLOATS), build


@intrinsic
def whole_bytes(context: Any, x: Any) -> Any:
    """Whole numbers from -128 to 127 as bytes."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.trunc(builder.fptosi(arguments[0], _vector(WORD)), _vector(BYTE))

    return BYTES(FLOATS), build


@intrinsic
def whole_floats(context: Any, codes: Any) -> Any:
    """32 signed bytes as floats."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.sitofp(builder.sext(arguments[0], _vector(WORD)), _vector(FLOAT))

    return FLOATS(BYTES), build


@intrinsic
def smaller(context: Any, a: Any, b: Any) -> Any:
    """The mask of the elements of ``a`` that are smaller than those of ``b``."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fcmp_ordered("<", *arguments), WORD)

    return types.uint32(FLOATS, FLOATS), build


@intrinsic
def larger(context: Any, a: Any, b: Any) -> Any:
    """The larger of two magnitudes each (their bits, so that NaN is the largest)."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b = (builder.and_(builder.bitcast(x, _vector(WORD)), _all(WORD, int(MAGNITUDE))) for x in arguments)
        return builder.bitcast(builder.select(builder.icmp_unsigned(">", a, b), a, b), _vector(FLOAT))

    return FLOATS(FLOATS, FLOATS), build


@intrinsic
def largest_bits(context: Any, x: Any) -> Any:
    """The bits of the largest of 32 magnitudes, int32."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.and_(builder.bitcast(arguments[0], _vector(WORD)), _all(WORD, int(MAGNITUDE)))
        return call(builder, f"llvm.vector.reduce.umax.v{LANES}i32", WORD, [bits])

    return types.int32(FLOATS), build


@intrinsic
def fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, f"llvm.fma.v{LANES}f32", _vector(FLOAT), arguments)

    return FLOATS(FLOATS, FLOATS, FLOATS), build


@intrinsic
def where(context: Any, mask: Any, a: Any, b: Any) -> Any:
    """``a`` where the mask's bit is 1, else ``b``."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        mask, a, b = arguments
        return builder.select(builder.bitcast(mask, _vector(BOOL)), a, b)

    return a(types.uint32, a, a), build


@intrinsic
def negated(context: Any, mask: Any, x: Any) -> Any:
    """``-x`` where the mask's bit is 1, else ``x``."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to_the_top = ir.Constant(_vector(WORD), [LANES - 1 - j for j in range(LANES)])
        signs = builder.shl(spread(builder, arguments[0], LANES), to_the_top)
        signs = builder.and_(signs, _all(WORD, 1 << 31))
        return builder.bitcast(builder.xor(builder.bitcast(arguments[1], _vector(WORD)), signs), _vector(FLOAT))

    return FLOATS(types.uint32, FLOATS), build


@intrinsic
def reaching(context: Any, x: Any, bits: Any) -> Any:
    """The mask of the elements whose magnitude's bits are ``bits`` (int32) or more."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        magnitudes = builder.and_(builder.bitcast(arguments[0], _vector(WORD)), _all(WORD, int(MAGNITUDE)))
        return builder.bitcast(builder.icmp_signed(">=", magnitudes, spread(builder, arguments[1], LANES)), WORD)

    return types.uint32(FLOATS, types.int32), build


@intrinsic
def ones(context: Any, mask: Any) -> Any:
    """How many of a mask's bits are 1."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.ctpop(arguments[0]), LONG)

    return types.int64(types.uint32), build


def _comparison(predicate: str, words: str) -> Any:
    def compare(context: Any, x: Any, number: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, number = arguments
            return builder.bitcast(builder.fcmp_ordered(predicate, x, spread(builder, number, LANES)), WORD)

        return types.uint32(FLOATS, types.float32), build

    compare.__doc__ = f"The mask of the elements {words} a float32 number; NaN is not."
    return intrinsic(compare)


at_least = _comparison(">=", ">=")
at_most = _comparison("<=", "<=")
above = _comparison(">", ">")
below = _comparison("<", "<")
equal = _comparison("==", "equal to")


def _operator(function: Function, instruction: str) -> None:
    """As a builtin of numba's: an overload would be compiled as a function of its own."""

    @infer_global(function)
    class _Typing(templates.AbstractTemplate):
        def generic(self, arguments: Any, names: Any) -> Any:
            a, b = arguments
            return signature_of(a, a, b) if a == b and a in (FLOATS, DOUBLES) else None

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*arguments)

    lower_builtin(function, Vector, Vector)(build)


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
