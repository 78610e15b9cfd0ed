"""The Hadamard rotation of 32 elements in vector registers."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from comm_compress.kernels.quantisers.blocks.reference import ROTATED
from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.vectors.llvm import WORD, call, intrinsic, repeated
from comm_compress.kernels.tools.vectors.vectors import FLOATS, load, store

NORMALISE = float(np.float32(ROTATED**-0.5))


@intrinsic
def rotated(context: Any, x: Any) -> Any:
    """32 floats times the matrix.

    Over distance d every element becomes itself plus its partner (upper half: its partner minus itself), which is
    a shuffle, and a product and an addition in one. From plain loops LLVM makes vectors of distances 8 and 16 alone.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        x = builder.fmul(arguments[0], repeated(NORMALISE, kind))
        distance = 1
        while distance < ROTATED:
            lanes = ir.Constant(ir.VectorType(WORD, ROTATED), [i ^ distance for i in range(ROTATED)])
            partner = builder.shuffle_vector(x, ir.Constant(kind, ir.Undefined), lanes)
            signs = ir.Constant(kind, [-1.0 if i & distance else 1.0 for i in range(ROTATED)])
            x = call(builder, f"llvm.fma.v{ROTATED}f32", kind, [x, signs, partner])  # a product with 1 or -1 is exact
            distance *= 2
        return x

    return FLOATS(FLOATS), build


@compiled
def rotate(x: Array) -> None:
    """Whole groups of 32 of a contiguous array, in place; `blocks.reference.rotated`."""
    for i in range(0, x.size - x.size % ROTATED, ROTATED):
        store(x, i, i + ROTATED, rotated(load(x, i, i + ROTATED)))
