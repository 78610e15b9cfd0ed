"""Whole rANS streams as one numba call each: tables of frequencies, blocks and literals, without Python in between."""

from __future__ import annotations

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
from comm_compress.kernels.cpu.coding.block_loops import Shorts, decode_pair, encode_block, planes_of
from comm_compress.kernels.cpu.coding.counting import counted
from comm_compress.kernels.cpu.coding.literals import TOO_SHORT, put_literals, take_literals
from comm_compress.kernels.cpu.vectors.unaligned import copy_bytes
from comm_compress.kernels.tools.compiled import compiled, inlined


def encode(symbols: Tensor, out: Tensor, scratch: Scratch) -> int:
    n = symbols.numel()
    room = scratch("words", (min(n, BLOCK) + LANES,), torch.int16, symbols.device)
    return int(_encode(symbols.numpy(), room.numpy().view(np.uint16), out.numpy()))


def decode(stream: Tensor, symbols: Tensor, scratch: Scratch) -> None:
    words = scratch("words", (2 * (min(symbols.numel(), BLOCK) + LANES),), torch.int16, stream.device)
    if _decode(stream.numpy(), words.numpy().view(np.uint16), symbols.numpy()) == TOO_SHORT:
        raise ValueError(f"a rANS stream of {symbols.numel()} symbols does not end within {stream.numel()} bytes")


@compiled
def _encode(symbols: Bytes, room: Shorts, out: Bytes) -> int:
    n = symbols.size
    blocks, lanes = (n + BLOCK - 1) // BLOCK, LANES if n >= MANY else FEW
    counts = counted(0, blocks, symbols, None, 1)
    frequencies, escape = cheapest(counts)
    head = table_bytes(frequencies, escape >= 0)
    rare, number = _rare(counts, frequencies, escape)
    place: Any = head + 4 * blocks * (1 + lanes)
    if place + number >= n:
        return 0
    _write_table(frequencies, escape, out)
    entries, octets = _entries(frequencies, escape, rare), room.view(np.uint8)
    planes, literals, found = planes_of(entries), np.empty(number + 1, np.uint8), 0
    for block in range(blocks):
        # a block's words and literals while it is in the cache
        states = np.full(lanes, LOWEST, np.uint32)
        words = encode_block(block, symbols, None, entries, planes, room, 0, states)
        if place + 2 * words + number >= n:
            return 0
        _put_number(out, head + 4 * block, np.uint32(words))
        for lane in range(lanes):
            _put_number(out, head + 4 * (blocks + block * lanes + lane), states[lane])
        copy_bytes(out, place, octets, 0, 2 * words)
        place += 2 * words
        if number:
            found += put_literals(symbols[block * BLOCK : (block + 1) * BLOCK], rare, literals, found)
    copy_bytes(out, place, literals, 0, number)
    return int(place + number)


@inlined
def _put_number(out: Any, place: Any, number: Any) -> None:
    """A uint32 in four bytes."""
    for k in range(4):
        out[place + k] = np.uint8(number >> np.uint32(8 * k) & np.uint32(255))


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
        if sizes[block] > min(n, BLOCK):  # a symbol puts out one word at most
            return TOO_SHORT
        end += np.int64(sizes[block])
        ends[block] = end
    if stream.size < fixed + 2 * end:
        return TOO_SHORT
    slots = np.empty((1, TOTAL), np.uint32)
    fill_slots(frequencies, slots)
    octets, literals, found = words.view(np.uint8), stream[fixed + 2 * end :], 0
    for one in range(0, blocks, 2):
        # the words of two blocks, and their literals while they are in the cache
        other, before = min(one + 1, blocks - 1), np.int64(0) if one == 0 else ends[one - 1]
        start, stop = fixed + 2 * before, fixed + 2 * ends[other]
        if stop + 2 * LANES <= stream.size:  # where groups read whole vectors
            coded = stream[start : stop + 2 * LANES].view(np.uint16)
        else:
            copy_bytes(octets, 0, stream, start, stop - start)
            coded = words
        heads, more = states[one * lanes : (one + 1) * lanes], states[other * lanes : (other + 1) * lanes]
        decode_pair(one, other, symbols, None, slots[0], coded, ends[one] - before, ends[other] - before, heads, more)
        if escape >= 0:
            part = symbols[one * BLOCK : (other + 1) * BLOCK]
            found = take_literals(part, np.uint8(escape), literals, found)
            if found == TOO_SHORT:
                return TOO_SHORT
    return TOO_SHORT if escape >= 0 and found != literals.size else n
