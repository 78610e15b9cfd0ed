"""The Hadamard rotation of 32 elements in vector registers."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending
from numba.core import cgutils, types

from comm_compress.kernels.blocks_reference import ROTATED
from comm_compress.kernels.numba_tools import Array, compiled

FLOATS = ir.VectorType(ir.FloatType(), ROTATED)
NORMALISE = float(np.float32(ROTATED**-0.5))


def _rotate_32(_context: Any, array: Any, _start: Any) -> Any:
    """``array[start : start + 32]``, float32, times the matrix.

    Over distance d every element becomes itself plus its partner (upper half: its partner minus itself), which is
    a shuffle, a change of signs and an addition. From plain loops LLVM makes vectors of distances 8 and 16 alone.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        proxy: Any = cgutils.create_struct_proxy
        data = proxy(signature.args[0])(context, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), FLOATS.as_pointer())
        x = builder.load(place, align=4)
        x = builder.fmul(x, ir.Constant(FLOATS, [NORMALISE] * ROTATED))
        distance = 1
        while distance < ROTATED:
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), ROTATED), [i ^ distance for i in range(ROTATED)])
            partner = builder.shuffle_vector(x, ir.Constant(FLOATS, ir.Undefined), lanes)
            signs = ir.Constant(FLOATS, [-1.0 if i & distance else 1.0 for i in range(ROTATED)])
            x = builder.fadd(partner, builder.fmul(x, signs))
            distance *= 2
        builder.store(x, place, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp), build


rotate_32: Any = extending.intrinsic(_rotate_32)


@compiled
def rotate(x: Array) -> None:
    """Whole groups of 32 of a contiguous array, in place; `blocks_reference.rotated`."""
    for start in range(0, x.size - x.size % ROTATED, ROTATED):
        rotate_32(x, start)
