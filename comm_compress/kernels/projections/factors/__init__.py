"""What thin factors need beside products; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.projections.factors.interface import FactorKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.projections.factors import cpu, reference

    _checked: tuple[FactorKernels, ...] = (reference, cpu)

factors = Topic[FactorKernels](__name__)
