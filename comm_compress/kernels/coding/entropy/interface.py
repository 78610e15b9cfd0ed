"""The loops over all symbols that rANS needs; `kernels.rans` does the rest of the coding."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from comm_compress.kernels.coding.frequencies import Counts, Marks
from comm_compress.kernels.coding.rans_stream import BLOCK
from comm_compress.kernels.tools.scratch import Scratch


class EntropyKernels(Protocol):
    """Counts, finds, encodes and decodes symbols, wherever they lie.

    Symbols and contexts are uint8 ``[n]``, contiguous; without contexts there is one. Frequencies, starts and marks are
    small arrays ``[contexts, 256]`` on the CPU. ``block`` is how many symbols are a block. `rans_stream` defines the
    stream.
    """

    def histogram(self, symbols: Tensor, contexts: Tensor | None, num_contexts: int) -> Counts:
        """How often each symbol occurs in each context: int64 ``[num_contexts, 256]``."""
        ...

    def find(self, symbols: Tensor, contexts: Tensor | None, marked: Marks, number: int) -> Tensor:
        """The positions of the symbols that are marked for their context, ``number`` of them: int64, ascending.

        ValueError where there are more or fewer.
        """
        ...

    def encode(
        self,
        symbols: Tensor,
        contexts: Tensor | None,
        frequencies: Counts,
        starts: Counts,
        scratch: Scratch,
        block: int = BLOCK,
    ) -> list[Tensor]:
        """As bytes: the sizes of all blocks, their states, and their words, which may come in several parts.

        The first size does not say yet how long blocks are.
        """
        ...

    def decode(
        self,
        symbols: Tensor,
        contexts: Tensor | None,
        frequencies: Counts,
        sizes: Tensor,
        states: Tensor,
        words: Tensor,
        block: int = BLOCK,
    ) -> None:
        """Write ``symbols`` from blocks' ``sizes`` and ``states``, both int32, and ``words`` int16.

        After the words lies memory for 32 more, which may be read.
        """
        ...
