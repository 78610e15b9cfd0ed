"""Narrower floats, floats as bytes, and sums of rows of them; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.elements.casts.interface import CastKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.elements.casts import cpu, reference, triton

    _checked: tuple[CastKernels, ...] = (reference, cpu, triton)

casts = Topic[CastKernels](__name__)
