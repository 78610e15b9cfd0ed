"""Whole rANS streams as one numba call each: tables of frequencies, blocks and literals, without Python in between."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.common.frequencies import (
    LISTED,
    MOST_BYTES,
    PRECISION,
    START_BITS,
    TOTAL,
    Bytes,
    Counts,
    Marks,
    Words,
    cheapest,
    fill_slots,
    table_bytes,
)
from comm_compress.kernels.common.rans_stream import BLOCK, FEW, LANES, LOWEST, MANY
from comm_compress.kernels.common.scratch import Scratch
from comm_compress.kernels.cpu.entropy import (
    COUNTERS,
    REGION,
    Shorts,
    count_symbols,
    decode_blocks,
    encode_blocks,
    positions_within,
)
from comm_compress.kernels.tools.compiled import compiled

TOO_SHORT = -1


def encode(symbols: Tensor, out: Tensor, scratch: Scratch) -> int:
    n = symbols.numel()
    room = scratch("words", (n + LANES * math.ceil(n / BLOCK),), torch.int16, symbols.device)
    return int(_encode(symbols.numpy(), room.numpy().view(np.uint16), out.numpy()))


def decode(stream: Tensor, symbols: Tensor, scratch: Scratch) -> None:
    words = scratch("words", (stream.numel() // 2 + LANES,), torch.int16, stream.device)
    if _decode(stream.numpy(), words.numpy().view(np.uint16), symbols.numpy()) == TOO_SHORT:
        raise ValueError(f"a rANS stream of {symbols.numel()} symbols does not end within {stream.numel()} bytes")


@compiled
def _encode(symbols: Bytes, room: Shorts, out: Bytes) -> int:
    n = symbols.size
    blocks, lanes = (n + BLOCK - 1) // BLOCK, LANES if n >= MANY else FEW
    counters = np.zeros((blocks, COUNTERS, 256), np.uint32)
    count_symbols(0, blocks, symbols, None, counters)
    counts = np.zeros(256, np.int64)
    for block in range(blocks):
        for counter in range(COUNTERS):
            for symbol in range(256):
                counts[symbol] += counters[block, counter, symbol]
    frequencies, escape = cheapest(counts)
    head = table_bytes(frequencies, escape >= 0)
    rare, literals = _rare(counts, frequencies, escape)
    if head + 4 * blocks * (1 + lanes) + literals >= n:
        return 0
    entries = _entries(frequencies, escape, rare)
    sizes, states = np.empty(blocks, np.uint32), np.full(blocks * lanes, LOWEST, np.uint32)
    encode_blocks(0, blocks, symbols, None, entries, lanes, room, sizes, states)
    place: Any = head + 4 * blocks * (1 + lanes)
    end: Any = place + literals
    for block in range(blocks):
        end += 2 * np.int64(sizes[block])
    if end >= n:
        return 0
    _write_table(frequencies, escape, out)
    out[head : head + 4 * blocks] = sizes.view(np.uint8)
    out[head + 4 * blocks : place] = states.view(np.uint8)
    octets = room.view(np.uint8)
    for block in range(blocks):
        begin, size = 2 * REGION * block, 2 * np.int64(sizes[block])
        out[place : place + size] = octets[begin : begin + size]
        place += size
    if literals:
        _put_literals(symbols, rare, out[place:end])
    return int(end)


@compiled
def _rare(counts: Counts, frequencies: Counts, escape: int) -> tuple[Marks, int]:
    """Which symbols go as literals, and how many there are of them in all."""
    rare = np.zeros(256, np.bool_)
    literals: Any = 0
    if escape >= 0:
        for symbol in range(256):
            if frequencies[symbol] == 0 or symbol == escape:
                rare[symbol] = True
                literals += counts[symbol]
    return rare, literals


@compiled
def _entries(frequencies: Counts, escape: int, rare: Marks) -> Words:
    entries, start = np.empty(256, np.uint32), 0
    for symbol in range(256):
        entries[symbol] = np.uint32(frequencies[symbol] << START_BITS | start)
        start += frequencies[symbol]
    for symbol in range(256):
        if rare[symbol]:
            entries[symbol] = entries[escape]
    return entries


@compiled
def _put_literals(symbols: Bytes, rare: Marks, out: Bytes) -> None:
    """The rare symbols in order; these are mostly neighbours, modulo 256: the tails of signed numbers."""
    runs, first = 0, 0
    for symbol in range(256):
        if rare[symbol] and not rare[symbol - 1]:
            runs, first = runs + 1, symbol
    if runs == 1:
        positions = np.empty(out.size, np.int64)
        positions_within(symbols, np.uint8(first), np.uint8(rare.sum() - 1), positions)
        for i in range(out.size):
            out[i] = symbols[positions[i]]
        return
    place = 0
    for i in range(symbols.size):
        if rare[symbols[i]]:
            out[place] = symbols[i]
            place += 1


@compiled
def _write_table(frequencies: Counts, escape: int, out: Bytes) -> None:
    """As `frequencies.Table.write`."""
    used = np.flatnonzero(frequencies)
    out[0], out[1], place = used.size - 1, escape >= 0, 2
    if escape >= 0:
        out[2], place = escape, 3
    if used.size <= LISTED:
        for symbol in used:
            out[place] = symbol
            place += 1
    else:
        out[place : place + LISTED] = 0
        for symbol in used:
            out[place + symbol // 8] |= np.uint8(128 >> symbol % 8)
        place += LISTED
    waiting: Any = 0
    bits = 0
    for i in range(used.size - 1):
        waiting |= (frequencies[used[i]] - 1) << bits
        bits += PRECISION
        while bits >= 8:
            out[place] = waiting & 255
            waiting, bits, place = waiting >> 8, bits - 8, place + 1
    if bits:
        out[place] = waiting


@compiled
def _read_table(stream: Bytes, frequencies: Counts) -> tuple[int, int]:
    """The escape symbol (-1: none), and how many bytes the table takes; frequencies as `frequencies.Table.read`."""
    number: Any = np.int64(stream[0]) + 1
    escape: Any = -1
    place: Any = 2
    if stream[1]:
        escape, place = np.int64(stream[2]), 3
    used = np.empty(256, np.int64)
    if number <= LISTED:
        for i in range(number):
            used[i] = stream[place + i]
        place += number
    else:
        found = 0
        for symbol in range(256):
            if stream[place + symbol // 8] >> (7 - symbol % 8) & 1:
                used[found] = symbol
                found += 1
        number, place = found, place + LISTED
    waiting: Any = 0
    bits, left = 0, TOTAL
    for i in range(number - 1):
        while bits < PRECISION:
            waiting |= np.int64(stream[place]) << bits
            bits, place = bits + 8, place + 1
        frequencies[used[i]] = (waiting & TOTAL - 1) + 1
        left -= frequencies[used[i]]
        waiting, bits = waiting >> PRECISION, bits - PRECISION
    frequencies[used[number - 1]] = left
    return escape, place


@compiled
def _decode(stream: Bytes, words: Shorts, symbols: Bytes) -> int:
    n = symbols.size
    blocks, lanes = (n + BLOCK - 1) // BLOCK, LANES if n >= MANY else FEW
    if stream.size < 2:
        return TOO_SHORT
    head = np.zeros(MOST_BYTES, np.uint8)
    head[: min(MOST_BYTES, stream.size)] = stream[:MOST_BYTES]
    frequencies = np.zeros((1, 256), np.int64)
    escape, place = _read_table(head, frequencies[0])
    fixed = place + 4 * blocks * (1 + lanes)
    if stream.size < fixed or frequencies.min() < 0:
        return TOO_SHORT
    sizes, states = np.empty(blocks, np.uint32), np.empty(blocks * lanes, np.uint32)
    sizes.view(np.uint8)[:] = stream[place : place + 4 * blocks]
    states.view(np.uint8)[:] = stream[place + 4 * blocks : fixed]
    ends = np.empty(blocks, np.int64)
    end: Any = 0
    for block in range(blocks):
        end += np.int64(sizes[block])
        ends[block] = end
    if stream.size < fixed + 2 * end:
        return TOO_SHORT
    words.view(np.uint8)[: 2 * end] = stream[fixed : fixed + 2 * end]
    slots = np.empty((1, TOTAL), np.uint32)
    fill_slots(frequencies, slots)
    decode_blocks(0, blocks, symbols, None, slots[0], lanes, words, ends, states)
    if escape >= 0:
        return _take_literals(stream[fixed + 2 * end :], np.uint8(escape), symbols)
    return n


@compiled
def _take_literals(literals: Bytes, escape: np.uint8, symbols: Bytes) -> int:
    """Write them in the places of the escape symbol."""
    number: Any = 0
    for i in range(symbols.size):
        number += symbols[i] == escape
    if number != literals.size:
        return TOO_SHORT
    positions = np.empty(number, np.int64)
    positions_within(symbols, escape, np.uint8(0), positions)
    for i in range(number):
        symbols[positions[i]] = literals[i]
    return symbols.size
