"""What error feedback encodes; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.elements.residual.interface import ResidualKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.elements.residual import cpu, reference

    _checked: tuple[ResidualKernels, ...] = (reference, cpu)

residual = Topic[ResidualKernels](__name__)
