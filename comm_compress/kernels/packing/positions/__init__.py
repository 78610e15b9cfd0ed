"""`kernels.positions`: `interface` says what it computes, the other files do it, with the same bytes."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.packing.positions.interface import PositionKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.packing.positions import cpu, reference

    _checked: tuple[PositionKernels, ...] = (reference, cpu)

positions = Topic[PositionKernels](__name__)
