"""The loops of rANS as numba kernels: block by block, 32 states at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from comm_compress.kernels.common.frequencies import (
    FREQUENCY,
    PRECISION,
    START_BITS,
    TOTAL,
    WITHIN,
    Bytes,
    Counts,
    Marks,
    Words,
    entries_of,
    slots_of,
)
from comm_compress.kernels.common.rans_stream import BLOCK, LANES, LOWEST, as_bytes, lanes_of
from comm_compress.kernels.common.scratch import Scratch
from comm_compress.kernels.cpu.vectors.rans_lanes import (
    absorbed,
    load_states,
    looked_up,
    overflowing,
    put_out,
    refilled,
    released,
    slot_places,
    store_states,
    store_symbols,
    symbol_places,
    too_small,
    within,
)
from comm_compress.kernels.cpu.vectors.unaligned import lowest_bit
from comm_compress.kernels.cpu.vectors.vectors import ones
from comm_compress.kernels.tools.compiled import compiled, inlined
from comm_compress.kernels.tools.threads import over_blocks

Shorts = npt.NDArray[np.uint16]
REGION = BLOCK + LANES  # of a block's words: those of a group are written together, needed or not
COUNTERS = 4  # of each symbol in a block: a run of one symbol does not wait for itself
OVERFLOW, SCALE = np.uint32(32 - PRECISION), np.uint32(PRECISION)
LOW_BITS, HALF, LOW_HALF = np.uint32(TOTAL - 1), np.uint32(16), np.uint32(0xFFFF)
TO_FREQUENCY, START = np.uint32(START_BITS), np.uint32((1 << START_BITS) - 1)  # of an entry
TO_WITHIN, TO_FEWER = np.uint32(WITHIN), np.uint32(FREQUENCY)  # of a slot


def histogram(symbols: Tensor, contexts: Tensor | None, num_contexts: int) -> Counts:
    counts = np.zeros((math.ceil(symbols.numel() / BLOCK), COUNTERS, num_contexts * 256), np.uint32)
    over_blocks(count_symbols, len(counts), BLOCK, *_arrays(symbols, contexts), counts)
    total: Counts = counts.sum((0, 1), dtype=np.int64).reshape(num_contexts, 256)
    return total


def find(symbols: Tensor, contexts: Tensor | None, marked: Marks, number: int) -> Tensor:
    positions = np.empty(number, np.int64)
    together = None if contexts is not None else _interval(marked[0])
    if together is not None:
        found = positions_within(symbols.numpy(), *together, positions)
    else:
        found = _positions(*_arrays(symbols, contexts), marked.ravel(), positions)
    assert found == number
    return torch.from_numpy(positions)


def _interval(marked: Marks) -> tuple[np.uint8, np.uint8] | None:
    """First and width if the marked symbols are neighbours, modulo 256: rare ones mostly are, signed numbers' tails."""
    first = np.flatnonzero(marked & ~np.roll(marked, 1))
    return (np.uint8(first[0]), np.uint8(marked.sum() - 1)) if len(first) == 1 else None


def encode(
    symbols: Tensor, contexts: Tensor | None, frequencies: Counts, starts: Counts, scratch: Scratch
) -> list[Tensor]:
    n, lanes = symbols.numel(), lanes_of(symbols.numel())
    blocks = math.ceil(n / BLOCK)
    room = scratch("words", (n + LANES * blocks,), torch.int16, symbols.device)
    sizes, states = np.empty(blocks, np.uint32), np.full(blocks * lanes, LOWEST, np.uint32)
    entries = entries_of(frequencies, starts).ravel()
    arrays = *_arrays(symbols, contexts), entries, lanes, room.numpy().view(np.uint16), sizes, states
    over_blocks(encode_blocks, blocks, BLOCK, *arrays)
    words = [room[b * REGION : b * REGION + size].view(torch.uint8) for b, size in enumerate(sizes.tolist())]
    return [as_bytes(sizes), as_bytes(states), *words]


def decode(
    symbols: Tensor, contexts: Tensor | None, frequencies: Counts, sizes: Tensor, states: Tensor, words: Tensor
) -> None:
    lanes, slots = lanes_of(symbols.numel()), slots_of(frequencies).ravel()
    ends = sizes.cumsum(0).numpy()
    coded = words.numpy().view(np.uint16), ends, states.numpy().view(np.uint32)
    over_blocks(decode_blocks, len(ends), BLOCK, *_arrays(symbols, contexts), slots, lanes, *coded)


def _arrays(symbols: Tensor, contexts: Tensor | None) -> tuple[Bytes, Bytes | None]:
    return symbols.numpy(), None if contexts is None else contexts.numpy()


@inlined
def _place(symbols: Any, contexts: Any, i: Any) -> Any:
    """Where tables ``[contexts, 256]`` have symbol number ``i``."""
    return np.int64(symbols[i]) if contexts is None else np.int64(contexts[i]) * 256 + np.int64(symbols[i])


@compiled
def count_symbols(first: int, last: int, symbols: Bytes, contexts: Bytes | None, counts: Words) -> None:
    for block in range(first, last):
        for i in range(block * BLOCK, min((block + 1) * BLOCK, symbols.size)):
            counts[block, i % COUNTERS, _place(symbols, contexts, i)] += 1


@compiled
def _positions(symbols: Bytes, contexts: Bytes | None, marked: Marks, positions: Counts) -> int:
    found = 0
    for i in range(symbols.size):
        if marked[_place(symbols, contexts, i)]:
            positions[found] = i
            found += 1
    return found


@compiled
def positions_within(symbols: Bytes, low: np.uint8, width: np.uint8, positions: Counts) -> int:
    found, whole = 0, symbols.size // LANES * LANES
    for i in range(0, whole, LANES):
        mask = within(symbols, i, low, width)
        while mask:
            positions[found] = i + lowest_bit(np.uint64(mask))
            found += 1
            mask &= mask - np.uint32(1)
    for i in range(whole, symbols.size):
        if np.uint8(symbols[i] - low) <= width:
            positions[found] = i
            found += 1
    return found


@compiled
def encode_blocks(
    first: int,
    last: int,
    symbols: Bytes,
    contexts: Bytes | None,
    entries: Words,
    lanes: int,
    words: Shorts,
    sizes: Words,
    heads: Words,
) -> None:
    for block in range(first, last):
        begin, end = block * BLOCK, min((block + 1) * BLOCK, symbols.size)
        states = heads[block * lanes : (block + 1) * lanes]
        top = block * REGION
        whole = _end_of_vectors(begin, end, lanes)
        place = _encode_one_by_one(symbols, contexts, entries, whole, end, words, top, states)
        if whole > begin:
            x = load_states(states)
            for i in range(whole - LANES, begin - 1, -LANES):
                entry = looked_up(entries, symbol_places(symbols, contexts, i))
                full = overflowing(x, entry)
                put_out(words, place, x, full)
                place += ones(full)
                x = absorbed(x, full, entry)
            store_states(states, x)
        sizes[block] = place - top


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
            x, entry = states[i - group], entries[_place(symbols, contexts, i)]
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
    symbols: Bytes,
    contexts: Bytes | None,
    slots: Words,
    lanes: int,
    words: Shorts,
    ends: Counts,
    heads: Words,
) -> None:
    for block in range(first, last):
        begin, end = block * BLOCK, min((block + 1) * BLOCK, symbols.size)
        states = heads[block * lanes : (block + 1) * lanes]
        place = ends[block]
        whole = _end_of_vectors(begin, end, lanes)
        if whole > begin:
            x = load_states(states)
            for i in range(begin, whole, LANES):
                slot = looked_up(slots, slot_places(x, contexts, i))
                store_symbols(symbols, i, slot)
                x = released(x, slot)
                short = too_small(x)
                place -= ones(short)
                x = refilled(x, short, words, place)
            store_states(states, x)
        _decode_one_by_one(symbols, contexts, slots, whole, end, words, place, states)


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
