"""How far floats have moved, as symbols for an entropy coder; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.coding.ulp.interface import UlpKernels
from comm_compress.kernels.dispatch import Topic

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.coding.ulp import cpu, reference

    _checked: tuple[UlpKernels, ...] = (reference, cpu)

ulp = Topic[UlpKernels](__name__)
