"""Writing results past the caches.

An ordinary store first reads the line that it will overwrite. What nobody reads again before it has left the caches
(a residual that waits for the next step) is written without that read. Such stores are ordered with no others, not
even by the locks that threads hand work over with: a thread that has streamed ends its part with `fence`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from comm_compress.kernels.llvm_tools import CACHE_LINE, LONG, WORD, element, intrinsic
from comm_compress.kernels.numba_tools import Array, compiled
from comm_compress.kernels.vectors import FLOATS, LANES, load, store


@intrinsic
def stream(context: Any, values: Any, i: Any, x: Any) -> Any:
    """``values[i : i + 32] = x``, float32; ``values[i]`` begins a cache line (see `to_line`)."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, i, x = arguments
        place = element(context, builder, signature.args[0], array, i, x.type)
        stored = builder.store(x, place, align=CACHE_LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(WORD, 1)]))
        return context.get_dummy_value()

    return types.void(values, types.intp, FLOATS), build


@intrinsic
def fence(context: Any) -> Any:
    """What was streamed is seen by other threads before anything that follows."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), build


@intrinsic
def to_line(context: Any, values: Any, i: Any) -> Any:
    """How many elements of float32 ``values`` lie between its i-th and the first one from there that begins a line."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, i = arguments
        place = element(context, builder, signature.args[0], array, i, WORD)
        bytes_ = builder.and_(builder.neg(builder.ptrtoint(place, LONG)), LONG(CACHE_LINE - 1))
        return builder.lshr(bytes_, LONG(2))

    return types.intp(values, types.intp), build


@compiled
def stream_all(source: Array, target: Array, start: int) -> None:
    """Copy float32 ``source`` to ``target[start : start + source.size]``."""
    head = min(source.size, to_line(target, start))
    whole = head + (source.size - head) // LANES * LANES
    _store_all(source, 0, head, target, start)
    for i in range(head, whole, LANES):
        stream(target, start + i, load(source, i, i + LANES))
    _store_all(source, whole, source.size, target, start)


@compiled
def _store_all(source: Array, first: int, last: int, target: Array, start: int) -> None:
    for i in range(first, last, LANES):
        store(target, start + i, start + last, load(source, i, last))
