"""Signed powers of two; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.quantisers.powers.interface import PowerKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.quantisers.powers import cpu, reference, triton

    _checked: tuple[PowerKernels, ...] = (reference, cpu, triton)

powers = Topic[PowerKernels](__name__)
