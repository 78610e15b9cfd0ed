"""Kernels for CPU tensors, compiled by numba: the bytes of the reference, in one pass over memory where possible.

What follows is read by mypy only: it checks every module against the interface of its topic.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comm_compress.kernels.cpu import (
        bitmap,
        bits,
        blocks,
        casts,
        entropy,
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
    from comm_compress.kernels.interfaces.bitmap import BitmapKernels
    from comm_compress.kernels.interfaces.bits import BitKernels
    from comm_compress.kernels.interfaces.blocks import BlockKernels
    from comm_compress.kernels.interfaces.casts import CastKernels
    from comm_compress.kernels.interfaces.entropy import EntropyKernels
    from comm_compress.kernels.interfaces.matrix_scales import MatrixScaleKernels
    from comm_compress.kernels.interfaces.onebit import OneBitKernels
    from comm_compress.kernels.interfaces.positions import PositionKernels
    from comm_compress.kernels.interfaces.powers import PowerKernels
    from comm_compress.kernels.interfaces.random import RandomKernels
    from comm_compress.kernels.interfaces.residual import ResidualKernels
    from comm_compress.kernels.interfaces.select import SelectKernels
    from comm_compress.kernels.interfaces.sketch import SketchKernels
    from comm_compress.kernels.interfaces.subsets import SubsetKernels
    from comm_compress.kernels.interfaces.trits import TritKernels
    from comm_compress.kernels.interfaces.ulp import UlpKernels
    from comm_compress.kernels.interfaces.votes import VoteKernels

    _bitmap: BitmapKernels = bitmap
    _bits: BitKernels = bits
    _blocks: BlockKernels = blocks
    _casts: CastKernels = casts
    _entropy: EntropyKernels = entropy
    _matrix_scales: MatrixScaleKernels = matrix_scales
    _onebit: OneBitKernels = onebit
    _positions: PositionKernels = positions
    _powers: PowerKernels = powers
    _random: RandomKernels = random
    _residual: ResidualKernels = residual
    _select: SelectKernels = select
    _sketch: SketchKernels = sketch
    _subsets: SubsetKernels = subsets
    _trits: TritKernels = trits
    _ulp: UlpKernels = ulp
    _votes: VoteKernels = votes
