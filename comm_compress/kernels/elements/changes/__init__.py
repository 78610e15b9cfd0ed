"""Whether anything has changed; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.elements.changes.interface import ChangeKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.elements.changes import cpu, reference

    _checked: tuple[ChangeKernels, ...] = (reference, cpu)

changes = Topic[ChangeKernels](__name__)
