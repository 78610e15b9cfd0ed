"""Blocks of rANS: groups of 32 symbols in vectors, what is left of them one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from comm_compress.kernels.coding.frequencies import (
    FREQUENCY,
    PRECISION,
    START_BITS,
    TOTAL,
    WITHIN,
    Bytes,
    Counts,
    Words,
)
from comm_compress.kernels.coding.loops.counting import SYMBOLS
from comm_compress.kernels.coding.loops.rans_entries import absorbed, entries_at, overflowing
from comm_compress.kernels.coding.loops.rans_lanes import (
    load_states,
    looked_up,
    put_out,
    refilled,
    released,
    slot_places,
    store_states,
    store_symbols,
    too_small,
)
from comm_compress.kernels.coding.rans_stream import LANES, LOWEST
from comm_compress.kernels.tools.compiled import compiled, inlined
from comm_compress.kernels.tools.vectors.vectors import ones

Shorts = npt.NDArray[np.uint16]
OVERFLOW, SCALE = np.uint32(32 - PRECISION), np.uint32(PRECISION)
LOW_BITS, HALF, LOW_HALF = np.uint32(TOTAL - 1), np.uint32(16), np.uint32(0xFFFF)
TO_FREQUENCY, START = np.uint32(START_BITS), np.uint32((1 << START_BITS) - 1)  # of an entry
TO_WITHIN, TO_FEWER = np.uint32(WITHIN), np.uint32(FREQUENCY)  # of a slot


@inlined
def place_of(symbols: Any, contexts: Any, i: Any) -> Any:
    """Where tables ``[contexts, 256]`` have symbol number ``i``."""
    return np.int64(symbols[i]) if contexts is None else np.int64(contexts[i]) * 256 + np.int64(symbols[i])


@compiled
def encode_blocks(
    first: int,
    last: int,
    length: int,
    symbols: Bytes,
    contexts: Bytes | None,
    entries: Words,
    lanes: int,
    words: Shorts,
    sizes: Words,
    heads: Words,
) -> None:
    """Blocks of ``length`` symbols, each with its words in a region of its own of `LANES` more.

    The words of a group are written together, needed or not.
    """
    planes, region = planes_of(entries), length + LANES
    for block in range(first, last):
        states = heads[block * lanes : (block + 1) * lanes]
        begin, end = block * length, min((block + 1) * length, symbols.size)
        sizes[block] = encode_block(begin, end, symbols, contexts, entries, planes, words, block * region, states)


@compiled
def planes_of(entries: Words) -> Shorts:
    """The first table's frequencies, then its starts, as `entries_at` takes them: uint16 ``[512]``."""
    planes = np.empty(2 * SYMBOLS, np.uint16)
    for symbol in range(SYMBOLS):
        planes[symbol] = entries[symbol] >> TO_FREQUENCY
        planes[SYMBOLS + symbol] = entries[symbol] & START
    return planes


@compiled
def encode_block(
    begin: int,
    end: int,
    symbols: Bytes,
    contexts: Bytes | None,
    entries: Words,
    planes: Shorts,
    words: Shorts,
    top: int,
    states: Words,
) -> int:
    """Write the words of the block ``symbols[begin : end]`` from ``words[top]`` on, room for `LANES` more than symbols.

    Returns how many there are.
    """
    whole = _end_of_vectors(begin, end, states.size)
    place = _encode_one_by_one(symbols, contexts, entries, whole, end, words, top, states)
    if whole > begin:
        x = load_states(states)
        for i in range(whole - LANES, begin - 1, -LANES):
            entry = entries_at(entries, planes, symbols, contexts, i)
            full = overflowing(x, entry)
            put_out(words, place, x, full)
            place += ones(full)
            x = absorbed(x, full, entry)
        store_states(states, x)
    return place - top


@inlined
def _end_of_vectors(begin: Any, end: Any, lanes: Any) -> Any:
    return begin + (end - begin) // LANES * LANES if lanes == LANES else begin


@compiled
def _encode_one_by_one(
    symbols: Bytes,
    contexts: Bytes | None,
    entries: Words,
    begin: int,
    end: int,
    words: Shorts,
    place: int,
    states: Words,
) -> int:
    """``symbols[begin : end]``, the last group of which may not be whole; returns where the words end."""
    lanes = states.size
    for group in range(begin + (end - begin - 1) // lanes * lanes, begin - 1, -lanes):
        for i in range(group, min(group + lanes, end)):
            x, entry = states[i - group], entries[place_of(symbols, contexts, i)]
            frequency = entry >> TO_FREQUENCY
            if x >> OVERFLOW >= frequency:
                words[place] = np.uint16(x & LOW_HALF)
                place += 1
                x >>= HALF
            # (x // f) 2^12 + x % f + start
            states[i - group] = x + (entry & START) + x // frequency * (np.uint32(TOTAL) - frequency)
    return place


@compiled
def decode_blocks(
    first: int,
    last: int,
    length: int,
    symbols: Bytes,
    contexts: Bytes | None,
    slots: Words,
    lanes: int,
    words: Shorts,
    ends: Counts,
    heads: Words,
) -> None:
    """Blocks of ``length`` symbols, the words of each before one of ``ends``."""
    for one in range(first, last, 2):
        other = min(one + 1, last - 1)
        states, more = heads[one * lanes : (one + 1) * lanes], heads[other * lanes : (other + 1) * lanes]
        decode_pair(one, other, length, symbols, contexts, slots, words, ends[one], ends[other], states, more)


@compiled
def decode_pair(
    one: int,
    other: int,
    length: int,
    symbols: Bytes,
    contexts: Bytes | None,
    slots: Words,
    words: Shorts,
    place: int,
    more: int,
    states: Words,
    others: Words,
) -> None:
    """A block and the next one (or itself: then it is alone), whose words end at ``place`` and at ``more``.

    They go on in turn: while one waits for what it looks up, the other has something to do.
    """
    begin, end = one * length, min((one + 1) * length, symbols.size)
    last = min((other + 1) * length, symbols.size)
    whole, both = _end_of_vectors(begin, end, states.size), begin
    rest = _end_of_vectors(other * length, last, states.size)
    if whole > begin:
        x = load_states(states)
        if other > one:
            y = load_states(others)
            both = rest - length
            for i in range(begin, both, LANES):
                x, place = _decode_group(symbols, contexts, slots, words, x, place, i)
                y, more = _decode_group(symbols, contexts, slots, words, y, more, i + length)
            store_states(others, y)
        for i in range(both, whole, LANES):
            x, place = _decode_group(symbols, contexts, slots, words, x, place, i)
        store_states(states, x)
    _decode_one_by_one(symbols, contexts, slots, whole, end, words, place, states)
    if other > one:
        _decode_one_by_one(symbols, contexts, slots, rest, last, words, more, others)


@inlined
def _decode_group(symbols: Any, contexts: Any, slots: Any, words: Any, x: Any, place: Any, i: Any) -> tuple[Any, Any]:
    """``symbols[i : i + 32]``; returns the states and where their words end now."""
    slot = looked_up(slots, slot_places(x, contexts, i))
    store_symbols(symbols, i, slot)
    x = released(x, slot)
    short = too_small(x)
    place -= ones(short)
    return refilled(x, short, words, place), place


@compiled
def _decode_one_by_one(
    symbols: Bytes,
    contexts: Bytes | None,
    slots: Words,
    begin: int,
    end: int,
    words: Shorts,
    place: int,
    states: Words,
) -> None:
    """``symbols[begin : end]`` from words that end at ``place``."""
    lanes = states.size
    for group in range(begin, end, lanes):
        for i in range(group, min(group + lanes, end)):
            x = states[i - group]
            table = 0 if contexts is None else np.int64(contexts[i]) * TOTAL
            slot = slots[table + np.int64(x & LOW_BITS)]
            symbols[i] = np.uint8(slot & np.uint32(255))
            frequency = (slot >> TO_FEWER) + np.uint32(1)
            states[i - group] = frequency * (x >> SCALE) + (slot >> TO_WITHIN & LOW_BITS)
        for i in range(min(group + lanes, end) - 1, group - 1, -1):
            if states[i - group] < np.uint32(LOWEST):
                place -= 1
                states[i - group] = states[i - group] << HALF | np.uint32(words[place])
