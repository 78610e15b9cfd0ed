"""Whole rANS streams without contexts, as `rans_stream` defines them, in one call each."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from comm_compress.kernels.tools.scratch import Scratch


class StreamKernels(Protocol):
    """Codes small and middling streams, where the fixed cost of many calls is more than that of the symbols."""

    def encode(self, symbols: Tensor, out: Tensor, scratch: Scratch) -> int:
        """Write the stream of ``symbols`` uint8 ``[n]``, contiguous, n above 0, to the front of ``out`` uint8 ``[n]``.

        Returns its bytes; 0, and ``out`` is as it may be, where they are no fewer than the symbols.
        """
        ...

    def decode(self, stream: Tensor, symbols: Tensor, scratch: Scratch, front: Tensor | None = None) -> None:
        """Write to ``symbols`` uint8 ``[n]``, contiguous, n above 0, what `encode` was given.

        ``stream`` uint8 begins at any address and ends with the stream. ``front`` is what a caller has of it on the CPU
        already, as many bytes as `rans_stream.front_bytes` says or all: a GPU is not waited for again then. ValueError
        where the stream is too short, or its blocks are none; a GPU does not notice that literals are missing.
        """
        ...
