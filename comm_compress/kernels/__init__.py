"""The arithmetic of the methods, in kernels: one implementation in torch operations, and faster ones of the same bytes.

A method calls ``kernels.TOPIC(tensor).FUNCTION(...)`` and never asks where its tensors lie:

    kernels.blocks(rows).encode(rows, code, key, codes, scales)

Each topic is a folder: `interface` says what its functions compute, `reference` defines it in torch operations, `cpu`
and `triton` do it fast. `dispatch` picks one of them by device.
"""

from comm_compress.kernels.coding import rans
from comm_compress.kernels.coding.ulp import ulp
from comm_compress.kernels.elements.casts import casts
from comm_compress.kernels.elements.changes import changes
from comm_compress.kernels.elements.finite import finite
from comm_compress.kernels.elements.random import random
from comm_compress.kernels.elements.residual import residual
from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.packing.bitmap import bitmap
from comm_compress.kernels.packing.bits import bits
from comm_compress.kernels.packing.positions import positions
from comm_compress.kernels.packing.trits import trits
from comm_compress.kernels.projections.factors import factors
from comm_compress.kernels.projections.sketch import sketch
from comm_compress.kernels.projections.sketch.reference import WINDOW
from comm_compress.kernels.quantisers.blocks import blocks
from comm_compress.kernels.quantisers.blocks.block_code import BlockCode
from comm_compress.kernels.quantisers.matrix_scales import matrix_scales
from comm_compress.kernels.quantisers.matrix_scales.matrices import Matrices, Quantiser, Shape, matrices_of
from comm_compress.kernels.quantisers.onebit import onebit
from comm_compress.kernels.quantisers.powers import powers
from comm_compress.kernels.quantisers.powers.reference import POWER_BLOCK
from comm_compress.kernels.quantisers.votes import votes
from comm_compress.kernels.selection.select import select
from comm_compress.kernels.selection.subsets import subsets

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
