"""Whole rANS streams in one call; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.coding.streams.interface import StreamKernels
from comm_compress.kernels.dispatch import Topic

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.coding.streams import cpu, reference, triton

    _checked: tuple[StreamKernels, ...] = (reference, cpu, triton)

streams = Topic[StreamKernels](__name__)
