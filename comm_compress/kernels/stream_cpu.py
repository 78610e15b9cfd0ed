"""Writing results past the caches.

An ordinary store first reads the line that it will overwrite. What nobody reads again before it has left the caches
(a residual that waits for the next step) is worked on in a small buffer and then written without that read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending
from numba.core import cgutils, types

from comm_compress.kernels.numba_tools import Array, compiled

LINE = 64  # bytes of a cache line, and of the vectors that are stored
FLOATS = LINE // 4


def _store_line(_context: Any, target: Any, _place: Any, _source: Any, _from: Any) -> Any:
    """``target[place : place + 16] = source[from : from + 16]``, float32; the target's line is not read."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        proxy: Any = cgutils.create_struct_proxy
        vector = ir.VectorType(ir.FloatType(), FLOATS).as_pointer()
        to, place, source, start = arguments
        to = builder.gep(proxy(signature.args[0])(context, builder, to).data, [place])
        source = builder.gep(proxy(signature.args[2])(context, builder, source).data, [start])
        line = builder.load(builder.bitcast(source, vector), align=4)
        stored = builder.store(line, builder.bitcast(to, vector), align=LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(target, types.intp, _source, types.intp), build


def _fence(_context: Any) -> Any:
    """What was streamed is seen by other threads before anything that follows."""

    def build(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), build


store_line: Any = extending.intrinsic(_store_line)
fence: Any = extending.intrinsic(_fence)


@compiled
def stream(source: Array, target: Array) -> None:
    """Copy float32 ``source`` to ``target`` of the same size; call `fence` after the last of many."""
    past_line = int(target.ctypes.data % np.uint64(LINE))
    head = min(target.size, (LINE - past_line) % LINE // 4)
    target[:head] = source[:head]
    whole = head + (target.size - head) // FLOATS * FLOATS
    for i in range(head, whole, FLOATS):
        store_line(target, i, source, i)
    target[whole:] = source[whole:]
