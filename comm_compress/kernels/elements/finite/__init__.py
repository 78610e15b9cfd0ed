"""`kernels.finite`: `interface` says what it computes, the other files do it, with the same bytes."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.elements.finite.interface import FiniteKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.elements.finite import cpu, reference

    _checked: tuple[FiniteKernels, ...] = (reference, cpu)

finite = Topic[FiniteKernels](__name__)
