"""Bit streams of codes of one width; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.packing.bits.interface import BitKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.packing.bits import cpu, reference, triton

    _checked: tuple[BitKernels, ...] = (reference, cpu, triton)

bits = Topic[BitKernels](__name__)
