"""The loops of rANS in plain Python: the definition, too slow for more than thousands of symbols."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.coding.frequencies import FREQUENCY, PRECISION, TOTAL, WITHIN, Counts, Marks, slots_of
from comm_compress.kernels.coding.rans_stream import BLOCK, LOWEST, as_bytes, lanes_of, miscounted
from comm_compress.kernels.tools.scratch import Scratch


def combined(symbols: Tensor, contexts: Tensor | None) -> Tensor:
    """int32 ``[n]``: each symbol's place in tables ``[contexts, 256]``."""
    return symbols.int() if contexts is None else contexts.int() * 256 + symbols


def histogram(symbols: Tensor, contexts: Tensor | None, num_contexts: int) -> Counts:
    counts = torch.bincount(combined(symbols, contexts), minlength=256 * num_contexts)
    table: Counts = counts.view(num_contexts, 256).cpu().numpy()
    return table


def find(symbols: Tensor, contexts: Tensor | None, marked: Marks, number: int) -> Tensor:
    marks = torch.from_numpy(marked.ravel()).to(symbols.device)
    positions = marks[combined(symbols, contexts)].nonzero().flatten()
    if positions.numel() != number:
        raise miscounted(number, positions.numel())
    return positions


def encode(
    symbols: Tensor,
    contexts: Tensor | None,
    frequencies: Counts,
    starts: Counts,
    scratch: Scratch,
    block: int = BLOCK,
) -> list[Tensor]:
    places, lanes = combined(symbols, contexts).tolist(), lanes_of(symbols.numel())
    f, start = frequencies.ravel().tolist(), starts.ravel().tolist()
    sizes, heads, words = list[int](), list[int](), list[int]()
    for begin in range(0, len(places), block):
        mine, states, before = places[begin : begin + block], [LOWEST] * lanes, len(words)
        for first in reversed(range(0, len(mine), lanes)):
            for state, s in enumerate(mine[first : first + lanes]):
                x = states[state]
                if x >= f[s] << 32 - PRECISION:
                    words.append(x & 0xFFFF)
                    x >>= 16
                states[state] = (x // f[s] << PRECISION) + x % f[s] + start[s]
        sizes.append(len(words) - before)
        heads += states
    return [as_bytes(np.array(sizes, "<u4")), as_bytes(np.array(heads, "<u4")), as_bytes(np.array(words, "<u2"))]


def decode(
    symbols: Tensor,
    contexts: Tensor | None,
    frequencies: Counts,
    sizes: Tensor,
    states: Tensor,
    words: Tensor,
    block: int = BLOCK,
) -> None:
    n = symbols.numel()
    slots, lanes = slots_of(frequencies).tolist(), lanes_of(n)
    tables = [0] * n if contexts is None else contexts.tolist()
    coming = words.numpy().view(np.uint16).tolist()
    found, end = list[int](), 0
    for number, size in enumerate(sizes.tolist()):
        xs = states[number * lanes : (number + 1) * lanes].numpy().view(np.uint32).tolist()
        end += size
        mine = coming[end - size : end]
        last = min((number + 1) * block, n)
        for first in range(number * block, last, lanes):
            short = []
            for state, table in enumerate(tables[first : min(first + lanes, last)]):
                x = xs[state]
                slot = slots[table][x % TOTAL]
                found.append(slot & 255)
                xs[state] = ((slot >> FREQUENCY) + 1) * (x >> PRECISION) + (slot >> WITHIN) % TOTAL
                if xs[state] < LOWEST:
                    short.append(state)
            for state in reversed(short):
                xs[state] = xs[state] << 16 | mine.pop()
    symbols.copy_(torch.tensor(found, dtype=torch.uint8))
