"""Whole rANS streams as one numba call each: tables of frequencies, blocks and literals, without Python in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.coding.entropy import cpu as entropy
from comm_compress.kernels.coding.frequencies import (
    MOST_BYTES,
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
from comm_compress.kernels.coding.loops.block_loops import Shorts, decode_pair, encode_block, planes_of
from comm_compress.kernels.coding.loops.counting import counted
from comm_compress.kernels.coding.loops.literals import TOO_SHORT, put_literals, take_literals
from comm_compress.kernels.coding.rans_stream import BLOCK, FEW, LANES, LOWEST, MANY, SIZE_BITS
from comm_compress.kernels.coding.streams.reference import decode_with
from comm_compress.kernels.coding.table_format import rare_symbols, read_table, write_table
from comm_compress.kernels.tools.compiled import compiled, inlined
from comm_compress.kernels.tools.scratch import Scratch
from comm_compress.kernels.tools.vectors.unaligned import copy_bytes

OTHER_BLOCKS = -2  # than a CPU writes


def encode(symbols: Tensor, out: Tensor, scratch: Scratch) -> int:
    n = symbols.numel()
    room = scratch("words", (min(n, BLOCK) + LANES,), torch.int16, symbols.device)
    return int(_encode(symbols.numpy(), room.numpy().view(np.uint16), out.numpy()))


def decode(stream: Tensor, symbols: Tensor, scratch: Scratch, front: Tensor | None = None) -> None:
    words = scratch("words", (2 * (min(symbols.numel(), BLOCK) + LANES),), torch.int16, stream.device)
    ended = _decode(stream.numpy(), words.numpy().view(np.uint16), symbols.numpy())
    if ended == OTHER_BLOCKS:
        decode_with(entropy, stream, symbols, scratch=scratch)
    elif ended == TOO_SHORT:
        raise ValueError(f"a rANS stream of {symbols.numel()} symbols does not end within {stream.numel()} bytes")


@compiled
def _encode(symbols: Bytes, room: Shorts, out: Bytes) -> int:
    n = symbols.size
    blocks, lanes = (n + BLOCK - 1) // BLOCK, LANES if n >= MANY else FEW
    counts = counted(0, blocks, symbols, None, 1)
    frequencies, escape = cheapest(counts)
    head = table_bytes(frequencies, escape >= 0)
    rare, number = rare_symbols(counts, frequencies, escape)
    place: Any = head + 4 * blocks * (1 + lanes)
    if place + number >= n:
        return 0
    write_table(frequencies, escape, out)
    entries, octets = _entries(frequencies, escape, rare), room.view(np.uint8)
    planes, literals, found = planes_of(entries), np.empty(number + 1, np.uint8), 0
    for block in range(blocks):
        # a block's words and literals while it is in the cache
        states = np.full(lanes, LOWEST, np.uint32)
        begin, end = block * BLOCK, min((block + 1) * BLOCK, n)
        words = encode_block(begin, end, symbols, None, entries, planes, room, 0, states)
        if place + 2 * words + number >= n:
            return 0
        _put_number(out, head + 4 * block, np.uint32(words))
        for lane in range(lanes):
            _put_number(out, head + 4 * (blocks + block * lanes + lane), states[lane])
        copy_bytes(out, place, octets, 0, 2 * words)
        place += 2 * words
        if number:
            found += put_literals(symbols[begin:end], rare, literals, found)
    copy_bytes(out, place, literals, 0, number)
    return int(place + number)


@inlined
def _put_number(out: Any, place: Any, number: Any) -> None:
    """A uint32 in four bytes."""
    for k in range(4):
        out[place + k] = np.uint8(number >> np.uint32(8 * k) & np.uint32(255))


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
def _decode(stream: Bytes, words: Shorts, symbols: Bytes) -> int:
    n = symbols.size
    blocks, lanes = (n + BLOCK - 1) // BLOCK, LANES if n >= MANY else FEW
    if stream.size < 2:
        return TOO_SHORT
    head = np.zeros(MOST_BYTES, np.uint8)
    head[: min(MOST_BYTES, stream.size)] = stream[:MOST_BYTES]
    frequencies = np.zeros((1, 256), np.int64)
    escape, place = read_table(head, frequencies[0])
    fixed = place + 4 * blocks * (1 + lanes)
    if stream.size < fixed or frequencies.min() < 0:
        return TOO_SHORT
    if stream[place + SIZE_BITS // 8]:
        return OTHER_BLOCKS
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
        places = ends[one] - before, ends[other] - before
        decode_pair(one, other, BLOCK, symbols, None, slots[0], coded, places[0], places[1], heads, more)
        if escape >= 0:
            part = symbols[one * BLOCK : (other + 1) * BLOCK]
            found = take_literals(part, np.uint8(escape), literals, found)
            if found == TOO_SHORT:
                return TOO_SHORT
    return TOO_SHORT if escape >= 0 and found != literals.size else n
