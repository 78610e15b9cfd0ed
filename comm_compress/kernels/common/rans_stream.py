"""The stream that static rANS over bytes writes; `kernels.rans` codes it.

rANS (Duda, arXiv 1311.2540), range variant: a state x in [2^16, 2^32) absorbs symbol s of frequency f, out of
2^12, by ``x = (x // f) * 2^12 + x % f + start``, after its low 16 bits were put out if it would have grown beyond 32.

Symbol i of a block belongs to state ``i % S``, so that symbols come in groups of one for each state: the lanes of a
vector, or of a warp. Groups are encoded last to first; states that put out words in the same group do so in
ascending order. A decoder goes through the groups first to last, and through the words from the last one back.

The frequencies may depend on a context of each symbol that both sides know: one table a context. Stream, little
endian:

    tables                  one a context that occurs, see `frequencies.Table.write`
    uint32 [blocks]         16-bit words of each block of 2^17 symbols
    uint32 [blocks, S]      states to start decoding each block from; S is 32, in streams of fewer than 2^15 symbols 4
    uint16 [...]            words, block after block
    uint8 [...]             literals: what the tables' escape symbols stand for, in order

Cost beyond the entropy: about 100 bytes a block (its size, and of each state three bytes out of four), and 2 bytes for
each symbol in use in each table.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LANES, FEW = 32, 4  # states of a block
MANY = 1 << 15  # symbols that are worth so many states
BLOCK = 1 << 17  # symbols coded independently of others: what a thread takes, or a warp
LOWEST = 1 << 16  # smallest state


def lanes_of(n: int) -> int:
    """How many states each block of a stream of ``n`` symbols has."""
    return LANES if n >= MANY else FEW


def as_bytes(numbers: npt.NDArray[np.unsignedinteger]) -> Tensor:
    """The numbers' memory as a uint8 tensor."""
    return torch.from_numpy(numbers.view(np.uint8))
