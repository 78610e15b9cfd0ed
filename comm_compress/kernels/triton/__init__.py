"""Kernels for CUDA tensors, written in Triton: the bytes of the reference.

A module is imported when a tensor first needs it; type checkers read all of them here, for `dispatch`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comm_compress.kernels.triton import (
        bits as bits,
        blocks as blocks,
        casts as casts,
        entropy as entropy,
        matrix_scales as matrix_scales,
        onebit as onebit,
        powers as powers,
        random as random,
        select as select,
        streams as streams,
        votes as votes,
    )
