"""The loops of rANS as numba kernels: block by block, 32 states at a time."""

from __future__ import annotations

import math
import threading

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.coding.frequencies import Bytes, Counts, Marks, entries_of, slots_of
from comm_compress.kernels.coding.loops.block_loops import decode_blocks, encode_blocks
from comm_compress.kernels.coding.loops.counting import SYMBOLS, counted
from comm_compress.kernels.coding.loops.literals import positions_of, positions_reaching, positions_within
from comm_compress.kernels.coding.rans_stream import BLOCK, LANES, LOWEST, as_bytes, lanes_of, miscounted
from comm_compress.kernels.tools.scratch import Scratch
from comm_compress.kernels.tools.threads import over_blocks


def histogram(symbols: Tensor, contexts: Tensor | None, num_contexts: int) -> Counts:
    counts, alone = np.zeros(num_contexts * SYMBOLS, np.int64), threading.Lock()
    arrays = _arrays(symbols, contexts)

    def count(first: int, last: int) -> None:
        part = counted(first, last, *arrays, num_contexts)
        with alone:
            np.add(counts, part, out=counts)

    over_blocks(count, math.ceil(symbols.numel() / BLOCK), BLOCK)
    return counts.reshape(num_contexts, SYMBOLS)


def find(symbols: Tensor, contexts: Tensor | None, marked: Marks, number: int) -> Tensor:
    positions = np.empty(number + 1, np.int64)
    if contexts is not None:
        least = np.full(SYMBOLS, SYMBOLS - 1, np.uint8)
        least[: len(marked)] = np.where(marked.any(1), marked.argmax(1), SYMBOLS - 1)
        found = positions_reaching(symbols.numpy(), contexts.numpy(), least, marked.ravel(), positions)
    elif (together := _interval(marked[0])) is not None:
        found = positions_within(symbols.numpy(), *together, positions)
    else:
        found = positions_of(symbols.numpy(), marked.ravel(), positions)
    if found != number:
        raise miscounted(number, found)
    return torch.from_numpy(positions[:number])


def _interval(marked: Marks) -> tuple[np.uint8, np.uint8] | None:
    """First and width if the marked symbols are neighbours, modulo 256: rare ones mostly are, signed numbers' tails."""
    first = np.flatnonzero(marked & ~np.roll(marked, 1))
    return (np.uint8(first[0]), np.uint8(marked.sum() - 1)) if len(first) == 1 else None


def encode(
    symbols: Tensor,
    contexts: Tensor | None,
    frequencies: Counts,
    starts: Counts,
    scratch: Scratch,
    block: int = BLOCK,
) -> list[Tensor]:
    n, lanes = symbols.numel(), lanes_of(symbols.numel())
    blocks, region = math.ceil(n / block), block + LANES
    room = scratch("words", (n + LANES * blocks,), torch.int16, symbols.device)
    sizes, states = np.empty(blocks, np.uint32), np.full(blocks * lanes, LOWEST, np.uint32)
    entries = entries_of(frequencies, starts).ravel()
    arrays = block, *_arrays(symbols, contexts), entries, lanes, room.numpy().view(np.uint16), sizes, states
    over_blocks(encode_blocks, blocks, block, *arrays)
    words = [room[b * region : b * region + size].view(torch.uint8) for b, size in enumerate(sizes.tolist())]
    return [as_bytes(sizes), as_bytes(states), *words]


def decode(
    symbols: Tensor,
    contexts: Tensor | None,
    frequencies: Counts,
    sizes: Tensor,
    states: Tensor,
    words: Tensor,
    block: int = BLOCK,
) -> None:
    lanes, slots = lanes_of(symbols.numel()), slots_of(frequencies).ravel()
    ends = sizes.cumsum(0).numpy()
    coded = words.numpy().view(np.uint16), ends, states.numpy().view(np.uint32)
    over_blocks(decode_blocks, len(ends), block, block, *_arrays(symbols, contexts), slots, lanes, *coded)


def _arrays(symbols: Tensor, contexts: Tensor | None) -> tuple[Bytes, Bytes | None]:
    return symbols.numpy(), None if contexts is None else contexts.numpy()
