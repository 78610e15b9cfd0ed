"""Codes of three states, five to a byte; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.packing.trits.interface import TritKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.packing.trits import cpu, reference

    _checked: tuple[TritKernels, ...] = (reference, cpu)

trits = Topic[TritKernels](__name__)
