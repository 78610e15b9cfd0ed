"""The arithmetic of the methods, in kernels: one implementation in torch operations, and faster ones of the same bytes.

A method calls ``kernels.TOPIC(tensor).FUNCTION(...)`` and never asks where its tensors lie:

    kernels.blocks(rows).encode(rows, code, key, codes, scales)

`interfaces` says for each topic what its functions compute, `dispatch` picks the implementation by device.
"""

from comm_compress.kernels import rans
from comm_compress.kernels.common.block_code import BlockCode
from comm_compress.kernels.common.matrix_scales import Matrices, Quantiser, Shape, matrices_of
from comm_compress.kernels.common.residual import Residual
from comm_compress.kernels.dispatch import (
    bitmap,
    bits,
    blocks,
    casts,
    changes,
    factors,
    finite,
    matrix_scales,
    onebit,
    positions,
    powers,
    random,
    residual,
    select,
    sketch,
    subsets,
    trits,
    ulp,
    votes,
)
from comm_compress.kernels.reference.powers import POWER_BLOCK
from comm_compress.kernels.reference.sketch import WINDOW

__all__ = [
    "POWER_BLOCK",
    "WINDOW",
    "BlockCode",
    "Matrices",
    "Quantiser",
    "Residual",
    "Shape",
    "bitmap",
    "bits",
    "blocks",
    "casts",
    "changes",
    "factors",
    "finite",
    "matrices_of",
    "matrix_scales",
    "onebit",
    "positions",
    "powers",
    "random",
    "rans",
    "residual",
    "select",
    "sketch",
    "subsets",
    "trits",
    "ulp",
    "votes",
]
