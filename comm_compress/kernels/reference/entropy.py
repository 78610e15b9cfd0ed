"""The loops of `rans_stream` in plain Python: the definition, too slow for more than thousands of symbols."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.common.frequencies import FREQUENCY, PRECISION, TOTAL, WITHIN, Counts, slots_of
from comm_compress.kernels.common.rans_stream import BLOCK, LOWEST, Loops, Marks, as_bytes, lanes_of
from comm_compress.kernels.common.scratch import Scratch


def combined(symbols: Tensor, contexts: Tensor | None) -> Tensor:
    """int32 ``[n]``: each symbol's place in tables ``[contexts, 256]``."""
    return symbols.int() if contexts is None else contexts.int() * 256 + symbols


def histogram(symbols: Tensor, contexts: Tensor | None, num: int) -> Counts:
    """`Loops.histogram` in torch operations."""
    counts: Counts = torch.bincount(combined(symbols, contexts), minlength=256 * num).view(num, 256).cpu().numpy()
    return counts


def find(symbols: Tensor, contexts: Tensor | None, marked: Marks, number: int) -> Tensor:
    """`Loops.find` in torch operations."""
    marks = torch.from_numpy(marked.ravel()).to(symbols.device)
    positions = marks[combined(symbols, contexts)].nonzero().flatten()
    assert positions.numel() == number
    return positions


def _encode(
    symbols: Tensor, contexts: Tensor | None, frequencies: Counts, starts: Counts, scratch: Scratch
) -> list[Tensor]:
    places, lanes = combined(symbols, contexts).tolist(), lanes_of(symbols.numel())
    f, start = frequencies.ravel().tolist(), starts.ravel().tolist()
    sizes, heads, words = list[int](), list[int](), list[int]()
    for begin in range(0, len(places), BLOCK):
        block, states, before = places[begin : begin + BLOCK], [LOWEST] * lanes, len(words)
        for first in reversed(range(0, len(block), lanes)):
            for state, s in enumerate(block[first : first + lanes]):
                x = states[state]
                if x >= f[s] << 32 - PRECISION:
                    words.append(x & 0xFFFF)
                    x >>= 16
                states[state] = (x // f[s] << PRECISION) + x % f[s] + start[s]
        sizes.append(len(words) - before)
        heads += states
    return [as_bytes(np.array(sizes, "<u4")), as_bytes(np.array(heads, "<u4")), as_bytes(np.array(words, "<u2"))]


def _decode(
    out: Tensor, contexts: Tensor | None, frequencies: Counts, sizes: Tensor, heads: Tensor, words: Tensor
) -> None:
    n = out.numel()
    slots, lanes = slots_of(frequencies).tolist(), lanes_of(n)
    tables = [0] * n if contexts is None else contexts.tolist()
    coming = words.numpy().view(np.uint16).tolist()
    symbols, end = list[int](), 0
    for block, size in enumerate(sizes.tolist()):
        states = heads[block * lanes : (block + 1) * lanes].numpy().view(np.uint32).tolist()
        end += size
        mine = coming[end - size : end]
        last = min((block + 1) * BLOCK, n)
        for first in range(block * BLOCK, last, lanes):
            short = []
            for state, table in enumerate(tables[first : min(first + lanes, last)]):
                x = states[state]
                slot = slots[table][x % TOTAL]
                symbols.append(slot & 255)
                states[state] = ((slot >> FREQUENCY) + 1) * (x >> PRECISION) + (slot >> WITHIN) % TOTAL
                if states[state] < LOWEST:
                    short.append(state)
            for state in reversed(short):
                states[state] = states[state] << 16 | mine.pop()
    out.copy_(torch.tensor(symbols, dtype=torch.uint8))


LOOPS = Loops(histogram, find, _encode, _decode)
