"""Matrices as whole numbers times scales of rows and columns; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.quantisers.matrix_scales.interface import MatrixScaleKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.quantisers.matrix_scales import cpu, reference, triton

    _checked: tuple[MatrixScaleKernels, ...] = (reference, cpu, triton)

matrix_scales = Topic[MatrixScaleKernels](__name__)
