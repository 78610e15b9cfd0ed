"""Votes on the sign of every element; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.quantisers.votes.interface import VoteKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.quantisers.votes import cpu, reference, triton

    _checked: tuple[VoteKernels, ...] = (reference, cpu, triton)

votes = Topic[VoteKernels](__name__)
