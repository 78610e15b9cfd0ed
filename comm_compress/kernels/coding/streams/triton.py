"""Whole rANS streams on a GPU: the CPU waits for counts and for a length to encode, for tables and sizes to decode."""

from __future__ import annotations

import math

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.coding.entropy.triton import (
    RARE_BIT,
    decode_blocks,
    encode_blocks,
    entries_of,
    histogram,
    move,
)
from comm_compress.kernels.coding.frequencies import (
    MOST_BYTES,
    TOTAL,
    Bytes,
    Counts,
    Marks,
    cheapest,
    fill_slots,
    starts_of,
    table_bytes,
)
from comm_compress.kernels.coding.rans_stream import SIZE_BITS, block_from, block_on, front_bytes, halvings_of, lanes_of
from comm_compress.kernels.coding.table_format import rare_symbols, read_table, write_table
from comm_compress.kernels.tools.scratch import Scratch
from comm_compress.kernels.tools.triton.launching import launch

LARGEST = (1 << SIZE_BITS) - 1
TABLE_BYTES = 256 * 8  # of the entries, which the stream's table follows on its way to the GPU
SLOT_NUMBERS = TOTAL // 2  # int64 numbers that slots take
TILE = 2048  # symbols among which literals are looked for together
TO_RARE = tl.constexpr(RARE_BIT)


def encode(symbols: Tensor, out: Tensor, scratch: Scratch) -> int:
    n, device = symbols.numel(), symbols.device
    lanes, block = lanes_of(n), block_on(device, n)
    blocks = math.ceil(n / block)
    counts = histogram(symbols, None, 1)[0]
    frequencies, escape = cheapest(counts)
    rare, literals = rare_symbols(counts, frequencies, escape)
    head = table_bytes(frequencies, escape >= 0)
    place = head + 4 * blocks * (1 + lanes)
    if place + literals >= n:
        return 0
    tables = torch.from_numpy(_tables(frequencies, escape, rare, head)).to(device, non_blocking=True)
    entries, room = tables[:TABLE_BYTES].view(torch.int64), scratch("words", (n,), torch.int16, device)
    heads, tallies = encode_blocks(symbols, None, entries, room, block, halvings_of(block) << SIZE_BITS)
    ends = tallies.cumsum(1, dtype=torch.int64)
    torch.cat([tables[TABLE_BYTES:], heads.view(torch.uint8)], out=out[:place])
    move(room, tallies[0], ends[0], out, place, block)
    if literals:
        arguments = symbols, entries, tallies, ends, out, place, n, blocks, block
        launch(_put_literals, (blocks,), *arguments, TILE=TILE)
    size = place + 2 * int(ends[0, -1]) + literals
    return size if size < n else 0


def _tables(frequencies: Counts, escape: int, rare: Marks, head: int) -> Bytes:
    """What the GPU needs to know: an encoder's entries, and the stream's table of ``head`` bytes."""
    starts, coded = starts_of(frequencies), frequencies.copy()
    if escape >= 0:
        coded[rare], starts[rare] = frequencies[escape], starts[escape]
    tables = np.empty(TABLE_BYTES + head, np.uint8)
    tables[:TABLE_BYTES].view(np.int64)[:] = entries_of(coded, starts, rare)
    write_table(frequencies, escape, tables[TABLE_BYTES:])
    return tables


def decode(stream: Tensor, symbols: Tensor, scratch: Scratch, front: Tensor | None = None) -> None:
    n, device, lanes = symbols.numel(), symbols.device, lanes_of(symbols.numel())
    frequencies = np.zeros((1, 256), np.int64)
    front = stream[: front_bytes(device, n)].cpu() if front is None else front
    escape, place, block, ends = _read_front(front.numpy(), stream, n, frequencies[0])
    blocks = len(ends)
    states_end = place + 4 * blocks * lanes
    end = states_end + 2 * int(ends[-1])
    if end > stream.numel():
        raise _too_short(stream, n)
    numbers = np.empty(SLOT_NUMBERS + blocks, np.int64)
    fill_slots(frequencies, numbers[:SLOT_NUMBERS].view(np.uint32).reshape(1, TOTAL))
    numbers[SLOT_NUMBERS:] = ends
    tables = torch.from_numpy(numbers).to(device, non_blocking=True)
    slots, ends_there = tables[:SLOT_NUMBERS].view(torch.int32), tables[SLOT_NUMBERS:]
    aligned = scratch("words", ((end - place + 1) // 2,), torch.int16, device)
    aligned.view(torch.uint8)[: end - place].copy_(stream[place:end])
    states, words = aligned[: 2 * blocks * lanes].view(torch.int32), aligned[2 * blocks * lanes :]
    escapes = decode_blocks(symbols, None, slots, words, ends_there, states, escape, block)
    if escape >= 0 and end < stream.numel():
        arguments = symbols, stream[end:], escapes, escapes.cumsum(0, dtype=torch.int64), n, stream.numel() - end
        launch(_take_literals, (blocks,), *arguments, escape, block, TILE=TILE)


def _read_front(front: Bytes, stream: Tensor, n: int, frequencies: Counts) -> tuple[int, int, int, Counts]:
    """The escape symbol (-1: none), where states begin, how long blocks are, and where the words of each end.

    The table's frequencies are written. More of the stream is fetched where blocks are shorter than this device's.
    """
    table = np.zeros(MOST_BYTES + SIZE_BITS // 8 + 1, np.uint8)
    table[: len(front)] = front[: len(table)]
    escape, place = read_table(table, frequencies)
    block = block_from(int(table[place + SIZE_BITS // 8]))
    states = place + 4 * math.ceil(n / block)
    if states > stream.numel() or frequencies.min() < 0:
        raise _too_short(stream, n)
    if states > len(front):
        front = stream[:states].cpu().numpy()
    sizes = front[place:states].copy().view(np.uint32).astype(np.int64)
    sizes[0] &= LARGEST
    if sizes.max() > min(n, block):  # a symbol puts out one word at most
        raise _too_short(stream, n)
    ends: Counts = sizes.cumsum()
    return escape, states, block, ends


def _too_short(stream: Tensor, n: int) -> ValueError:
    return ValueError(f"a rANS stream of {n} symbols does not end within {stream.numel()} bytes")


@triton.jit(do_not_specialize=["offset", "n", "blocks", "span"])
def _put_literals(symbols, entries, tallies, ends, out, offset, n, blocks, span, TILE: tl.constexpr):
    """A block's rare symbols, in order, behind all words and the literals of the blocks before; ``out`` has n bytes."""
    block = tl.program_id(0)
    number = tl.load(tallies + blocks + block)
    place = offset + 2 * tl.load(ends + blocks - 1) + tl.load(ends + blocks + block) - number
    begin = block.to(tl.int64) * span
    size = tl.minimum(n - begin, span).to(tl.int32)
    for first in range(0, tl.where(number > 0, size, 0), TILE):
        i = first + tl.arange(0, TILE)
        mask = i < size
        symbol = tl.load(symbols + begin + i, mask=mask, other=0)
        rare = (tl.load(entries + symbol.to(tl.int32), mask=mask, other=0) >> TO_RARE).to(tl.int32) & 1
        at = place + tl.cumsum(rare, 0) - rare
        tl.store(out + at, symbol, mask=(rare == 1) & (at < n))
        place += tl.sum(rare, axis=0)


@triton.jit(do_not_specialize=["n", "count", "escape", "span"])
def _take_literals(symbols, literals, tallies, ends, n, count, escape, span, TILE: tl.constexpr):
    """The ``count`` literals to where symbols are the escape symbol."""
    block = tl.program_id(0)
    number = tl.load(tallies + block)
    place = tl.load(ends + block) - number
    begin = block.to(tl.int64) * span
    size = tl.minimum(n - begin, span).to(tl.int32)
    for first in range(0, tl.where(number > 0, size, 0), TILE):
        i = first + tl.arange(0, TILE)
        symbol = tl.load(symbols + begin + i, mask=i < size, other=0).to(tl.int32)
        escaped = ((i < size) & (symbol == escape)).to(tl.int32)
        at = place + tl.cumsum(escaped, 0) - escaped
        mask = (escaped == 1) & (at < count)
        tl.store(symbols + begin + i, tl.load(literals + at, mask=mask, other=0), mask=mask)
        place += tl.sum(escaped, axis=0)
