"""Block codes; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.quantisers.blocks.interface import BlockKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.quantisers.blocks import cpu, reference, triton

    _checked: tuple[BlockKernels, ...] = (reference, cpu, triton)

blocks = Topic[BlockKernels](__name__)
