"""One bit an element and two means a group; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.quantisers.onebit.interface import OneBitKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.quantisers.onebit import cpu, reference, triton

    _checked: tuple[OneBitKernels, ...] = (reference, cpu, triton)

onebit = Topic[OneBitKernels](__name__)
