"""Ascending positions in few bits; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.packing.positions.interface import PositionKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.packing.positions import cpu, reference

    _checked: tuple[PositionKernels, ...] = (reference, cpu)

positions = Topic[PositionKernels](__name__)
