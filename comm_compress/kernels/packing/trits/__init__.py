"""`kernels.trits`: `interface` says what it computes, the other files do it, with the same bytes."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.packing.trits.interface import TritKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.packing.trits import cpu, reference

    _checked: tuple[TritKernels, ...] = (reference, cpu)

trits = Topic[TritKernels](__name__)
