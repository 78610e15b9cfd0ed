"""The stream that static rANS over bytes writes; `kernels.rans` codes it.

rANS (Duda, arXiv 1311.2540), range variant: a state x in [2^16, 2^32) absorbs symbol s of frequency f, out of
2^12, by ``x = (x // f) * 2^12 + x % f + start``, after its low 16 bits were put out if it would have grown beyond 32.

Symbol i of a block belongs to state ``i % S``, so that symbols come in groups of one for each state: the lanes of a
vector, or of a warp. Groups are encoded last to first; states that put out words in the same group do so in
ascending order. A decoder goes through the groups first to last, and through the words from the last one back.

The frequencies may depend on a context of each symbol that both sides know: one table a context. Stream, little
endian:

    tables                  one a context that occurs, see `frequencies.Table.write`
    uint32 [blocks]         16-bit words of each block; in the highest byte of the first one, how often 2^17 symbols,
                            the length of a block, were halved
    uint32 [blocks, S]      states to start decoding each block from; S is 32, in streams of fewer than 2^15 symbols 4
    uint16 [...]            words, block after block
    uint8 [...]             literals: what the tables' escape symbols stand for, in order

Blocks are as long as the device that writes them wants (`block_on`), and every device reads all lengths. A CPU writes
2^17 symbols, a GPU 512 groups, because a warp takes its groups one after the other and there are thousands of warps.

Cost beyond the entropy: about 100 bytes a block (its size, and of each state three bytes out of four), and 2 bytes for
each symbol in use in each table. Of symbols of 4 bits that is 0.15 % in blocks of 2^17 symbols, and 1.2 % in those of a
GPU, 2^14 symbols. With 4 states these have 2^11: in a stream of 2^14 symbols 0.2 % become 1.6 %.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from comm_compress.kernels.coding.frequencies import MOST_BYTES

LANES, FEW = 32, 4  # states of a block
MANY = 1 << 15  # symbols that are worth so many states
BLOCK = 1 << 17  # symbols coded independently of others, at most: what a thread takes
LOWEST = 1 << 16  # smallest state
GROUPS = {"cuda": 1 << 9}  # of a block, by the type of the device that writes it; elsewhere as many as `BLOCK` has
MOST_HALVINGS = 12  # of `BLOCK`: every state has a symbol then
SIZE_BITS = 24  # of a block's size; in the first one's upper bits are the halvings


def lanes_of(n: int) -> int:
    """How many states each block of a stream of ``n`` symbols has."""
    return LANES if n >= MANY else FEW


def block_on(device: torch.device, n: int) -> int:
    """How many symbols each block (but the last) has of a stream of ``n`` symbols that this device writes."""
    groups = GROUPS.get(device.type)
    return BLOCK if groups is None else min(groups * lanes_of(n), BLOCK)


def halvings_of(block: int) -> int:
    """What the stream says of blocks of so many symbols."""
    return (BLOCK // block).bit_length() - 1


def block_from(halvings: int) -> int:
    """The length of blocks that a stream speaks of. ValueError where that is less than one symbol for each state."""
    if halvings > MOST_HALVINGS:
        raise ValueError(
            f"a rANS stream has blocks of {BLOCK} symbols halved {halvings} times, and {MOST_HALVINGS} times are the"
            " most: these bytes are not a rANS stream, or were damaged on their way"
        )
    return BLOCK >> halvings


def front_bytes(device: torch.device, n: int) -> int:
    """How many bytes of a stream of ``n`` symbols on this device the CPU has to know: its table and its sizes."""
    return MOST_BYTES + 4 * math.ceil(n / block_on(device, n))


def miscounted(literals: int, symbols: int) -> ValueError:
    """Why a stream cannot be decoded whose literals are not as many as its escape symbols."""
    return ValueError(
        f"a rANS stream has {literals} literals for {symbols} symbols that stand for one: it was damaged on its way"
    )


def as_bytes(numbers: npt.NDArray[np.unsignedinteger]) -> Tensor:
    """The numbers' memory as a uint8 tensor."""
    return torch.from_numpy(numbers.view(np.uint8))
