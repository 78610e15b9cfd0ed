"""How often each byte occurs, alone or in a context.

A counter in memory waits for its own last addition, which is just behind where most symbols are alike, so each of
eight neighbours has a counter of its own. Where 16 successive bytes are almost all that occurs, as of small signed
numbers, no memory is needed: each of them is compared with 32 symbols at once.
"""

from __future__ import annotations

import numpy as np

from comm_compress.kernels.coding.frequencies import Bytes, Counts, Words
from comm_compress.kernels.coding.loops.octets import (
    COUNTED,
    TOGETHER,
    add_counts,
    largest,
    store_pairs,
    within,
)
from comm_compress.kernels.coding.rans_stream import BLOCK
from comm_compress.kernels.tools.compiled import compiled
from comm_compress.kernels.tools.vectors.unaligned import load_word, lowest_bit, ones_in

COUNTERS = 8  # of each symbol
SYMBOLS = 256
PIECE = 1 << 12  # symbols that are counted in one of the two ways
LOOKED_AT = 256  # of these: they say which
FEW = LOOKED_AT // 32  # of these that may be something else
APART = 48  # unused counters, so that those of one symbol share no set of a cache
AT_ONCE = 1 << 14  # blocks that counters of 32 bits are enough for
NEAR_ZERO = np.uint8(256 - COUNTED // 2)  # the first of as many signed numbers on both sides of zero
WIDTH, ONE = np.uint8(COUNTED - 1), np.uint32(1)
OCTET, PAIR = np.uint64(0xFF), np.uint64(0xFFFF)


@compiled
def counted(first: int, last: int, symbols: Bytes, contexts: Bytes | None, num_contexts: int) -> Counts:
    """How often each symbol occurs in each context, in blocks of rANS: int64 ``[num_contexts * 256]``."""
    sums = np.zeros(num_contexts * SYMBOLS, np.int64)
    for start in range(first, last, AT_ONCE):
        begin, end = start * BLOCK, min(min(start + AT_ONCE, last) * BLOCK, symbols.size)
        counts = np.zeros((COUNTERS, sums.size + APART), np.uint32)
        if contexts is None:
            count_bytes(symbols, begin, end, counts)
        else:
            _count_pairs(symbols, contexts, begin, end, counts)
        for counter in range(COUNTERS):
            of_it = counts[counter]
            for place in range(sums.size):
                sums[place] += of_it[place]
    return sums


@compiled
def count_bytes(octets: Bytes, begin: int, end: int, counts: Words) -> None:
    """Add ``octets[begin : end]`` to ``counts`` uint32 ``[COUNTERS, 256]``."""
    for start in range(begin, end, PIECE):
        stop = min(start + PIECE, end)
        interval, low = _mostly_within(octets, start, stop)
        if interval:
            _count_interval(octets, start, stop, low, counts)
        else:
            _count_eight(octets, start, stop, counts)


@compiled
def _mostly_within(octets: Bytes, begin: int, end: int) -> tuple[bool, np.uint8]:
    """Are the first bytes mostly within 16 that begin with the second result: near zero, or up to the largest?"""
    if end - begin < LOOKED_AT:
        return False, NEAR_ZERO
    most, near, below = np.uint8(0), 0, 0
    for i in range(begin, begin + LOOKED_AT, TOGETHER):
        most = max(most, largest(octets, i))
        near += ones_in(within(octets, i, NEAR_ZERO, WIDTH))
    low = np.uint8(most - WIDTH)
    for i in range(begin, begin + LOOKED_AT, TOGETHER):
        below += ones_in(within(octets, i, low, WIDTH))
    return max(near, below) >= LOOKED_AT - FEW, NEAR_ZERO if near >= below else low


@compiled
def _count_interval(octets: Bytes, begin: int, end: int, low: np.uint8, counts: Words) -> None:
    near = np.zeros(COUNTED, np.int64)
    whole = begin + (end - begin) // TOGETHER * TOGETHER
    add_counts(octets, begin, whole, low, near)
    for i in range(begin, whole, TOGETHER):
        others = ~within(octets, i, low, WIDTH)
        while others:
            counts[0, octets[i + lowest_bit(others)]] += ONE
            others &= others - np.uint64(1)
    for i in range(whole, end):
        counts[0, octets[i]] += ONE
    for k in range(COUNTED):
        counts[0, (low + k) & 255] += np.uint32(near[k])


@compiled
def _count_eight(octets: Bytes, begin: int, end: int, counts: Words) -> None:
    whole = begin + (end - begin) // COUNTERS * COUNTERS
    for i in range(begin, whole, COUNTERS):
        word = load_word(octets, i)
        for k in range(COUNTERS):
            counts[k, (word >> np.uint64(8 * k)) & OCTET] += ONE
    for i in range(whole, end):
        counts[0, octets[i]] += ONE


@compiled
def _count_pairs(symbols: Bytes, contexts: Bytes, begin: int, end: int, counts: Words) -> None:
    pairs = np.empty(PIECE, np.uint16)
    octets = pairs.view(np.uint8)
    for start in range(begin, end, PIECE):
        size = min(PIECE, end - start)
        together, whole = size // TOGETHER * TOGETHER, size // COUNTERS * COUNTERS
        for i in range(0, together, TOGETHER):
            store_pairs(symbols, contexts, start + i, pairs, i)
        for i in range(together, size):
            pairs[i] = np.int64(contexts[start + i]) * SYMBOLS + np.int64(symbols[start + i])
        for i in range(0, whole, COUNTERS):
            four, more = load_word(octets, 2 * i), load_word(octets, 2 * i + 8)
            for k in range(4):
                counts[k, (four >> np.uint64(16 * k)) & PAIR] += ONE
                counts[4 + k, (more >> np.uint64(16 * k)) & PAIR] += ONE
        for i in range(whole, size):
            counts[0, pairs[i]] += ONE
