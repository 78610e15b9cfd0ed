"""What brings a sum of gradients back to all ranks, in the second half of an all-reduce."""

from __future__ import annotations

from comm_compress.core.compressor import Compressor
from comm_compress.wrappers.error_feedback import ErrorFeedback


def way_back(method: Compressor) -> Compressor | None:
    """Return ``method`` without its error feedback, where it brings back every element by itself; else None: exactly.

    Sparse methods, and those that remember what they sent, would leave elements out that the sum has.
    """
    plain = method.inner if isinstance(method, ErrorFeedback) else method
    return plain if plain.traits.for_parameters else None
