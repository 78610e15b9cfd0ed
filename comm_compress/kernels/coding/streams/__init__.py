"""`kernels.streams`: `interface` says what it computes, the other files do it, with the same bytes."""

from typing import TYPE_CHECKING

from comm_compress.kernels.coding.streams.interface import StreamKernels
from comm_compress.kernels.dispatch import Topic

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.coding.streams import cpu, reference, triton

    _checked: tuple[StreamKernels, ...] = (reference, cpu, triton)

streams = Topic[StreamKernels](__name__)
