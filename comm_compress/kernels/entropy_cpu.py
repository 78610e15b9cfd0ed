"""The rANS of `entropy_reference` as numba kernels: the same stream, block by block on the thread pool."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from comm_compress.kernels.entropy_reference import (
    BLOCK,
    LOWEST,
    PRECISION,
    STATES,
    TOTAL,
    Bytes,
    Counts,
    Longs,
    Loops,
    Marks,
    Words,
    decode_stream,
    encode_stream,
    slots_of,
    starts_of,
)
from comm_compress.kernels.numba_tools import compiled, over_blocks

SHIFT = np.uint64(32 - PRECISION)
MASK = np.uint32(TOTAL - 1)


def rans_encode(symbols: Tensor, contexts: Tensor | None = None, num_contexts: int = 1) -> Tensor:
    """As `entropy_reference.rans_encode`."""
    return encode_stream(symbols, contexts, num_contexts, LOOPS)


def rans_decode(stream: Tensor, n: int, contexts: Tensor | None = None, num_contexts: int = 1) -> Tensor:
    """As `entropy_reference.rans_decode`."""
    return decode_stream(stream, n, contexts, num_contexts, LOOPS)


def _count(symbols: Bytes, contexts: Bytes | None, num: int) -> Counts:
    counts = np.zeros((math.ceil(symbols.size / BLOCK), 4, num * 256), np.int64)
    over_blocks(_histogram, counts.shape[0], BLOCK, symbols, contexts, counts)
    total: Counts = counts.sum((0, 1)).reshape(num, 256)
    return total


def _find(symbols: Bytes, contexts: Bytes | None, marked: Marks, number: int) -> Counts:
    positions = np.empty(number, np.int64)
    found = _positions(symbols, contexts, marked.ravel(), positions)
    assert found == number
    return positions


def _encode_blocks(
    symbols: Bytes, contexts: Bytes | None, frequencies: Counts, starts: Counts
) -> tuple[Longs, Longs, Words]:
    blocks = math.ceil(symbols.size / BLOCK)
    scratch = np.empty(symbols.size + blocks, np.uint16)
    sizes, states = np.empty(blocks, np.uint32), np.full(blocks * STATES, LOWEST, np.uint32)
    arrays = (symbols, contexts, _entries(frequencies, starts), scratch, sizes, states)
    over_blocks(_encode, blocks, BLOCK, *arrays)
    ends = [min((b + 1) * BLOCK, symbols.size) + b + 1 for b in range(blocks)]
    return sizes, states, np.concatenate([scratch[e - int(s) : e] for e, s in zip(ends, sizes, strict=True)])


def _decode_blocks(
    n: int, contexts: Bytes | None, frequencies: Counts, sizes: Longs, heads: Longs, words: Words
) -> Bytes:
    symbols = np.empty(n, np.uint8)
    slots = np.empty((len(frequencies), TOTAL), np.uint8)
    for c in np.flatnonzero(frequencies.any(1)):
        slots[c] = slots_of(frequencies[c : c + 1])
    places = np.cumsum(sizes, dtype=np.int64) - sizes
    padded = np.append(words, np.uint16(0))  # the kernel looks at a word before it knows whether it needs one
    arrays = (
        symbols,
        contexts,
        _entries(frequencies, starts_of(frequencies)),
        slots.ravel(),
        padded,
        places,
        heads.copy(),
    )
    over_blocks(_decode, len(sizes), BLOCK, *arrays)
    return symbols


LOOPS = Loops(_count, _find, _encode_blocks, _decode_blocks)


def _entries(frequencies: Counts, starts: Counts) -> Longs:
    """Frequency and start of every symbol in one word: one load."""
    return (frequencies << 16 | starts).astype(np.uint32).ravel()


# The loops are free of branches: whether a state overflows is a coin toss that no processor predicts.


@compiled
def _histogram(first: int, last: int, symbols: Bytes, contexts: Bytes | None, counts: Counts) -> None:
    for block in range(first, last):
        for i in range(block * BLOCK, min((block + 1) * BLOCK, symbols.size)):
            symbol = np.int64(symbols[i])
            if contexts is not None:
                symbol += np.int64(contexts[i]) * 256
            counts[block, i & 3, symbol] += 1  # four counters: a run of one symbol does not wait for itself


@compiled
def _positions(symbols: Bytes, contexts: Bytes | None, marked: Marks, positions: Counts) -> int:
    found = 0
    for i in range(symbols.size):
        symbol = np.int64(symbols[i])
        if contexts is not None:
            symbol += np.int64(contexts[i]) * 256
        if marked[symbol]:
            positions[found] = i
            found += 1
    return found


@compiled
def _encode(
    first: int,
    last: int,
    symbols: Bytes,
    contexts: Bytes | None,
    entries: Longs,
    words: Words,
    sizes: Longs,
    heads: Longs,
) -> None:
    for block in range(first, last):
        begin, end = block * BLOCK, min((block + 1) * BLOCK, symbols.size)
        states = heads[block * STATES : (block + 1) * STATES]
        place = np.int64(end + block + 1)  # one word a block is written to and never kept
        for i in range(end - 1, begin - 1, -1):
            symbol = np.int64(symbols[i])
            if contexts is not None:
                symbol += np.int64(contexts[i]) * 256
            entry, x = entries[symbol], states[i & (STATES - 1)]
            f = np.uint32(entry >> np.uint32(16))
            grown = np.uint32(np.uint64(x) >= np.uint64(f) << SHIFT)
            words[place - 1] = np.uint16(x & np.uint32(0xFFFF))
            place -= np.int64(grown)
            x = np.uint32(x >> (grown << np.uint32(4)))
            quotient = np.uint32(x // f)
            rest = np.uint32(x - quotient * f)
            states[i & (STATES - 1)] = np.uint32(
                (quotient << np.uint32(PRECISION)) + rest + (entry & np.uint32(0xFFFF))
            )
        sizes[block] = end + block + 1 - place


@compiled
def _decode(
    first: int,
    last: int,
    symbols: Bytes,
    contexts: Bytes | None,
    entries: Longs,
    slots: Bytes,
    words: Words,
    places: Counts,
    heads: Longs,
) -> None:
    for block in range(first, last):
        states = heads[block * STATES : (block + 1) * STATES]
        place = places[block]
        for i in range(block * BLOCK, min((block + 1) * BLOCK, symbols.size)):
            x = states[i & (STATES - 1)]
            slot = np.uint32(x & MASK)
            offset = np.int64(0) if contexts is None else np.int64(contexts[i])
            symbol = slots[offset * TOTAL + np.int64(slot)]
            symbols[i] = symbol
            entry = entries[offset * 256 + np.int64(symbol)]
            x = np.uint32((entry >> np.uint32(16)) * (x >> np.uint32(PRECISION)) + slot - (entry & np.uint32(0xFFFF)))
            shrunk = np.uint32(x < LOWEST)
            states[i & (STATES - 1)] = np.uint32((x << (shrunk << np.uint32(4))) | (words[place] * shrunk))
            place += np.int64(shrunk)
