"""The largest elements; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.selection.select.interface import SelectKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.selection.select import cpu, reference, triton

    _checked: tuple[SelectKernels, ...] = (reference, cpu, triton)

select = Topic[SelectKernels](__name__)
