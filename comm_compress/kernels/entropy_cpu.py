"""The rANS of `entropy_reference` as numba kernels: the same stream, block by block."""

from __future__ import annotations

import math
from typing import Any

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
from comm_compress.kernels.numba_tools import Array, compiled, inlined
from comm_compress.kernels.threads import over_blocks

ZERO, ONE, EIGHT, SYMBOLS = np.uint64(0), np.uint64(1), np.uint64(STATES), np.uint64(256)
SHIFT, MASK = np.uint64(32 - PRECISION), np.uint32(TOTAL - 1)
WORD, LOW = np.uint32(16), np.uint32(0xFFFF)  # bits that leave a state together, and their mask
RECIPROCAL = np.uint64(46)
assert STATES == 8, "each has a variable of its own below"


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
    arrays = (symbols, contexts, _entries(frequencies, starts), _reciprocals(frequencies), scratch, sizes, states)
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


def _reciprocals(frequencies: Counts) -> Array:
    """2^46 / f, rounded up: for x below 2^18 f, (x times that) >> 46 is x // f and fits into 64 bits (f <= 2^14)."""
    divisors = np.maximum(frequencies.ravel(), 1)
    return (((1 << int(RECIPROCAL)) + divisors - 1) // divisors).astype(np.uint64)


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


@inlined
def _absorb(x: Any, symbol: Any, context: Any, entries: Any, reciprocals: Any, words: Any, place: Any) -> Any:
    """A state that has taken in a symbol, and where the words begin that states have put out so far."""
    entry = entries[context + np.uint64(symbol)]
    frequency = entry >> WORD
    words[place - ONE] = np.uint16(x)
    full = np.uint64(x) >= np.uint64(frequency) << SHIFT
    place -= np.uint64(full)
    x = np.uint32(x >> WORD) if full else x
    quotient = np.uint32((np.uint64(x) * reciprocals[context + np.uint64(symbol)]) >> RECIPROCAL)
    # (x // f) * 2^14 + x % f + start
    return np.uint32(x + (entry & LOW) + quotient * (np.uint32(TOTAL) - frequency)), place


@inlined
def _release(x: Any, context: Any, entries: Any, slots: Any, words: Any, place: Any) -> Any:
    """The symbol that a state took in last, the state before that, and where the words begin that are left."""
    slot = x & MASK
    symbol = slots[context * np.uint64(TOTAL) + np.uint64(slot)]
    entry = entries[context * SYMBOLS + np.uint64(symbol)]
    x = np.uint32((entry >> WORD) * (x >> np.uint32(PRECISION)) + slot - (entry & LOW))
    refilled = np.uint32(x << WORD | np.uint32(words[place]))
    short = x < np.uint32(LOWEST)
    return symbol, refilled if short else x, place + np.uint64(short)


@inlined
def _context(contexts: Any, i: Any) -> Any:
    return ZERO if contexts is None else np.uint64(contexts[i])


@compiled
def _encode(
    first: int,
    last: int,
    symbols: Bytes,
    contexts: Bytes | None,
    entries: Longs,
    reciprocals: Array,
    words: Words,
    sizes: Longs,
    heads: Longs,
) -> None:
    for block in range(first, last):
        begin, end = block * BLOCK, min((block + 1) * BLOCK, symbols.size)
        states = heads[block * STATES : (block + 1) * STATES]
        place = top = np.uint64(end + block + 1)  # one word a block is written to and never kept
        i, whole = np.uint64(end), np.uint64(begin + (end - begin) // STATES * STATES)
        while i > whole:
            i -= ONE
            k = i % EIGHT
            c = _context(contexts, i) * SYMBOLS
            states[k], place = _absorb(states[k], symbols[i], c, entries, reciprocals, words, place)
        # each state in a register: through memory, this took 1.6 times as long
        x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
        x4, x5, x6, x7 = states[4], states[5], states[6], states[7]
        while i > np.uint64(begin):
            i -= EIGHT
            c = _context(contexts, i + np.uint64(7)) * SYMBOLS
            x7, place = _absorb(x7, symbols[i + np.uint64(7)], c, entries, reciprocals, words, place)
            c = _context(contexts, i + np.uint64(6)) * SYMBOLS
            x6, place = _absorb(x6, symbols[i + np.uint64(6)], c, entries, reciprocals, words, place)
            c = _context(contexts, i + np.uint64(5)) * SYMBOLS
            x5, place = _absorb(x5, symbols[i + np.uint64(5)], c, entries, reciprocals, words, place)
            c = _context(contexts, i + np.uint64(4)) * SYMBOLS
            x4, place = _absorb(x4, symbols[i + np.uint64(4)], c, entries, reciprocals, words, place)
            c = _context(contexts, i + np.uint64(3)) * SYMBOLS
            x3, place = _absorb(x3, symbols[i + np.uint64(3)], c, entries, reciprocals, words, place)
            c = _context(contexts, i + np.uint64(2)) * SYMBOLS
            x2, place = _absorb(x2, symbols[i + np.uint64(2)], c, entries, reciprocals, words, place)
            c = _context(contexts, i + np.uint64(1)) * SYMBOLS
            x1, place = _absorb(x1, symbols[i + np.uint64(1)], c, entries, reciprocals, words, place)
            c = _context(contexts, i) * SYMBOLS
            x0, place = _absorb(x0, symbols[i], c, entries, reciprocals, words, place)
        states[0], states[1], states[2], states[3] = x0, x1, x2, x3
        states[4], states[5], states[6], states[7] = x4, x5, x6, x7
        sizes[block] = top - place


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
        begin, end = block * BLOCK, min((block + 1) * BLOCK, symbols.size)
        states = heads[block * STATES : (block + 1) * STATES]
        place = np.uint64(places[block])
        i, whole = np.uint64(begin), np.uint64(begin + (end - begin) // STATES * STATES)
        x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
        x4, x5, x6, x7 = states[4], states[5], states[6], states[7]
        while i < whole:
            c = _context(contexts, i)
            symbols[i], x0, place = _release(x0, c, entries, slots, words, place)
            c = _context(contexts, i + np.uint64(1))
            symbols[i + np.uint64(1)], x1, place = _release(x1, c, entries, slots, words, place)
            c = _context(contexts, i + np.uint64(2))
            symbols[i + np.uint64(2)], x2, place = _release(x2, c, entries, slots, words, place)
            c = _context(contexts, i + np.uint64(3))
            symbols[i + np.uint64(3)], x3, place = _release(x3, c, entries, slots, words, place)
            c = _context(contexts, i + np.uint64(4))
            symbols[i + np.uint64(4)], x4, place = _release(x4, c, entries, slots, words, place)
            c = _context(contexts, i + np.uint64(5))
            symbols[i + np.uint64(5)], x5, place = _release(x5, c, entries, slots, words, place)
            c = _context(contexts, i + np.uint64(6))
            symbols[i + np.uint64(6)], x6, place = _release(x6, c, entries, slots, words, place)
            c = _context(contexts, i + np.uint64(7))
            symbols[i + np.uint64(7)], x7, place = _release(x7, c, entries, slots, words, place)
            i += EIGHT
        states[0], states[1], states[2], states[3] = x0, x1, x2, x3
        states[4], states[5], states[6], states[7] = x4, x5, x6, x7
        while i < np.uint64(end):
            k = i % EIGHT
            symbols[i], states[k], place = _release(states[k], _context(contexts, i), entries, slots, words, place)
            i += ONE
