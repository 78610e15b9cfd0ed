"""The loops over all symbols that rANS needs; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.coding.entropy.interface import EntropyKernels
from comm_compress.kernels.dispatch import Topic

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.coding.entropy import cpu, reference, triton

    _checked: tuple[EntropyKernels, ...] = (reference, cpu, triton)

entropy = Topic[EntropyKernels](__name__)
