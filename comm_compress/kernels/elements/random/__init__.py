"""Random numbers of a key and a counter; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.elements.random.interface import RandomKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.elements.random import cpu, reference, triton

    _checked: tuple[RandomKernels, ...] = (reference, cpu, triton)

random = Topic[RandomKernels](__name__)
