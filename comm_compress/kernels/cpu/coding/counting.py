"""How often each symbol occurs, counted block by block.

A counter in memory waits for its own last addition, which is just behind where most symbols are alike, so each of
eight neighbours has a counter of its own. Small signed numbers are counted without any memory, in vectors: each of the
16 bytes nearest to zero is compared with 64 symbols at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from comm_compress.kernels.common.frequencies import Bytes, Counts, Words
from comm_compress.kernels.common.rans_stream import BLOCK
from comm_compress.kernels.cpu.vectors.octets import NEAR, TOGETHER, add_near_zero, far_from_zero
from comm_compress.kernels.cpu.vectors.unaligned import load_word, lowest_bit
from comm_compress.kernels.tools.compiled import compiled, inlined

COUNTERS = 8  # of each symbol
SYMBOLS = 256
PIECE = 1 << 12  # symbols that are counted in one of the two ways
LOOKED_AT = 256  # of these: they say which
FEW = LOOKED_AT // 16  # that may be far from zero
OCTET, EIGHT, ONE = np.uint64(255), np.uint64(8), np.uint32(1)


@compiled
def count_symbols(first: int, last: int, symbols: Bytes, contexts: Bytes | None, counts: Words) -> None:
    """Add to ``counts`` uint32 ``[blocks, COUNTERS, contexts * 256]`` the symbols of blocks from ``first`` on."""
    for block in range(first, last):
        begin, end = block * BLOCK, min((block + 1) * BLOCK, symbols.size)
        if contexts is None:
            for start in range(begin, end, PIECE):
                _count_piece(symbols, start, min(start + PIECE, end), counts[block])
        else:
            _count_pairs(symbols, contexts, begin, end, counts[block])


@compiled
def total(counts: Words) -> Counts:
    """The sums of all counters of all blocks: int64 ``[contexts * 256]``."""
    sums = np.zeros(counts.shape[2], np.int64)
    for block in range(counts.shape[0]):
        for counter in range(COUNTERS):
            of_it = counts[block, counter]
            for place in range(sums.size):
                sums[place] += of_it[place]
    return sums


@compiled
def _count_piece(symbols: Bytes, begin: int, end: int, counts: Words) -> None:
    far = 0
    for i in range(begin, begin + LOOKED_AT, TOGETHER):
        if i + TOGETHER <= end:
            far += far_from_zero(symbols, i)[1]
    if far > FEW:
        _count_eight(symbols, begin, end, counts)
        return
    near = np.zeros(NEAR, np.int64)
    whole = begin + (end - begin) // TOGETHER * TOGETHER
    for i in range(begin, whole, TOGETHER):
        add_near_zero(symbols, i, near)
        others = far_from_zero(symbols, i)[0]
        while others:
            counts[0, symbols[i + lowest_bit(others)]] += ONE
            others &= others - np.uint64(1)
    for i in range(whole, end):
        counts[0, symbols[i]] += ONE
    for k in range(NEAR):
        counts[0, (k - NEAR // 2) & 255] += np.uint32(near[k])


@inlined
def _octet(word: Any, number: Any) -> Any:
    """Byte ``number`` of a word."""
    return np.int64((word >> (EIGHT * np.uint64(number))) & OCTET)


@compiled
def _count_eight(symbols: Bytes, begin: int, end: int, counts: Words) -> None:
    whole = begin + (end - begin) // COUNTERS * COUNTERS
    for i in range(begin, whole, COUNTERS):
        word = load_word(symbols, i)
        for k in range(COUNTERS):
            counts[k, _octet(word, k)] += ONE
    for i in range(whole, end):
        counts[0, symbols[i]] += ONE


@compiled
def _count_pairs(symbols: Bytes, contexts: Bytes, begin: int, end: int, counts: Words) -> None:
    whole = begin + (end - begin) // COUNTERS * COUNTERS
    for i in range(begin, whole, COUNTERS):
        word, rows = load_word(symbols, i), load_word(contexts, i)
        for k in range(COUNTERS):
            counts[k, _octet(rows, k) * SYMBOLS + _octet(word, k)] += ONE
    for i in range(whole, end):
        counts[0, np.int64(contexts[i]) * SYMBOLS + np.int64(symbols[i])] += ONE
