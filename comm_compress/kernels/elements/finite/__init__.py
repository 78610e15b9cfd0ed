"""Whether numbers are finite; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.elements.finite.interface import FiniteKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.elements.finite import cpu, reference

    _checked: tuple[FiniteKernels, ...] = (reference, cpu)

finite = Topic[FiniteKernels](__name__)
