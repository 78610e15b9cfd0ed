"""Random subsets; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.selection.subsets.interface import SubsetKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.selection.subsets import cpu, reference

    _checked: tuple[SubsetKernels, ...] = (reference, cpu)

subsets = Topic[SubsetKernels](__name__)
