"""Kernels for CUDA tensors, written in Triton: the bytes of the reference.

What follows is read by mypy only: it checks every module against the interface of its topic.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comm_compress.kernels.interfaces.bits import BitKernels
    from comm_compress.kernels.interfaces.blocks import BlockKernels
    from comm_compress.kernels.interfaces.casts import CastKernels
    from comm_compress.kernels.interfaces.entropy import EntropyKernels
    from comm_compress.kernels.interfaces.onebit import OneBitKernels
    from comm_compress.kernels.interfaces.powers import PowerKernels
    from comm_compress.kernels.interfaces.random import RandomKernels
    from comm_compress.kernels.interfaces.select import SelectKernels
    from comm_compress.kernels.interfaces.votes import VoteKernels
    from comm_compress.kernels.triton import (
        bits,
        blocks,
        casts,
        entropy,
        onebit,
        powers,
        random,
        select,
        votes,
    )

    _bits: BitKernels = bits
    _blocks: BlockKernels = blocks
    _casts: CastKernels = casts
    _entropy: EntropyKernels = entropy
    _onebit: OneBitKernels = onebit
    _powers: PowerKernels = powers
    _random: RandomKernels = random
    _select: SelectKernels = select
    _votes: VoteKernels = votes
