"""The loops of rANS as Triton kernels: one warp codes one block.

The CPU sees the histogram, to make tables of it, and the tables and sizes of a stream. Symbols and words stay on the
GPU. A warp takes one group of symbols after the other, so what counts is how long one group takes: there is no
division (`reciprocals`), states that put out words are counted by one sum of bits instead of a scan, and what
does not depend on the states is loaded before it is needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.coding.entropy.reference import find
from comm_compress.kernels.coding.frequencies import FREQUENCY, PRECISION, TOTAL, WITHIN, Counts, Marks, slots_of
from comm_compress.kernels.coding.rans_stream import BLOCK, LOWEST, lanes_of
from comm_compress.kernels.coding.reciprocals import reciprocals_of
from comm_compress.kernels.tools.scratch import Scratch
from comm_compress.kernels.tools.triton.launching import launch

__all__ = ["decode", "encode", "find", "histogram"]  # `find` is the reference's

Entries = npt.NDArray[np.int64]
MOST = (1 << 31) - (1 << 23)  # symbols: their numbers are int32, and loops end beyond them
COUNTED, PROGRAMS = 4096, 1024  # symbols that are counted together, and how many programs count
COPIED = 4096  # bytes of a block that one program moves
# bits of an entry: the start is below, the factor of the reciprocal above
SHIFT_BIT, FREQUENCY_BIT, ADDEND_BIT, RARE_BIT, FACTOR_BIT = 12, 16, 29, 30, 32
OVERFLOW, SCALE = tl.constexpr(32 - PRECISION), tl.constexpr(PRECISION)
START, SHIFT, TO_SHIFT = tl.constexpr(TOTAL - 1), tl.constexpr(15), tl.constexpr(SHIFT_BIT)
TO_FREQUENCY, MOST_FREQUENT = tl.constexpr(FREQUENCY_BIT), tl.constexpr(2 * TOTAL - 1)
TO_ADDEND, TO_RARE, TO_FACTOR = tl.constexpr(ADDEND_BIT), tl.constexpr(RARE_BIT), tl.constexpr(FACTOR_BIT)
# The entry of no symbol: a frequency that no state is too large for, and a factor of zero, leave states as they are.
NOTHING = tl.constexpr((2 * TOTAL - 1) << FREQUENCY_BIT)
TO_WITHIN, TO_FEWER = tl.constexpr(WITHIN), tl.constexpr(FREQUENCY)  # of a slot
ALL, SMALLEST = tl.constexpr(TOTAL), tl.constexpr(LOWEST)
SECTORS = tl.constexpr(512)  # of 32 bytes, which a multiprocessor's cache fetches: all slots, or a GPU's block of words


def histogram(symbols: Tensor, contexts: Tensor | None, num_contexts: int) -> Counts:
    n = symbols.numel()
    assert n < MOST, "positions are int32"
    counts = torch.zeros(num_contexts * 256, dtype=torch.int32, device=symbols.device)
    grid = min(triton.cdiv(n, COUNTED), PROGRAMS), num_contexts
    launch(_count, grid, symbols, contexts, counts, n, TILE=COUNTED)
    table: Counts = counts.cpu().numpy().astype(np.int64).reshape(num_contexts, 256)
    return table


def encode(
    symbols: Tensor,
    contexts: Tensor | None,
    frequencies: Counts,
    starts: Counts,
    scratch: Scratch,
    block: int = BLOCK,
) -> list[Tensor]:
    n, device = symbols.numel(), symbols.device
    blocks = triton.cdiv(n, block)
    entries = torch.from_numpy(entries_of(frequencies, starts).ravel()).to(device, non_blocking=True)
    room = scratch("words", (n,), torch.int16, device)
    heads, tallies = encode_blocks(symbols, contexts, entries, room, block, 0)
    ends = tallies[0].cumsum(0, dtype=torch.int64)
    words = torch.empty(2 * int(ends[-1]), dtype=torch.uint8, device=device)
    move(room, tallies, ends, words, 0, block)
    octets = heads.view(torch.uint8)
    return [octets[: 4 * blocks], octets[4 * blocks :], words]


def decode(
    symbols: Tensor,
    contexts: Tensor | None,
    frequencies: Counts,
    sizes: Tensor,
    states: Tensor,
    words: Tensor,
    block: int = BLOCK,
) -> None:
    slots = torch.from_numpy(slots_of(frequencies).view(np.int32).ravel()).to(symbols.device, non_blocking=True)
    decode_blocks(symbols, contexts, slots, words, sizes.cumsum(0, dtype=torch.int64), states, -1, block)


def _entries_of_frequencies() -> Entries:
    """What an entry has of each frequency from 0 to 2^12: all but the start, and if the symbol is rare."""
    frequencies = np.arange(TOTAL + 1)
    factor, shift, addend = reciprocals_of(frequencies)
    # the highest bit of a factor becomes the sign
    return shift << SHIFT_BIT | frequencies << FREQUENCY_BIT | addend << ADDEND_BIT | factor << FACTOR_BIT


OF_FREQUENCY = _entries_of_frequencies()


def entries_of(frequencies: Counts, starts: Counts, rare: Marks | None = None) -> Entries:
    """What an encoder looks up, int64 as ``frequencies``: all about a symbol, and if it goes as a literal."""
    entries = OF_FREQUENCY[frequencies] | starts & TOTAL - 1
    return entries if rare is None else entries | rare.astype(np.int64) << RARE_BIT


def encode_blocks(
    symbols: Tensor, contexts: Tensor | None, entries: Tensor, room: Tensor, block: int, first: int
) -> tuple[Tensor, Tensor]:
    """Write each block's words to ``room`` int16 ``[n]``, from where its symbols begin.

    Returns sizes and states as the stream has them, int32 ``[blocks * (1 + lanes)]``, ``first`` added to the first
    size, and int32 ``[2, blocks]``: the sizes, and how many rare symbols there are in each block.
    """
    n = symbols.numel()
    assert n < MOST, "positions are int32"
    lanes, blocks = lanes_of(n), triton.cdiv(n, block)
    heads = torch.empty(blocks * (1 + lanes), dtype=torch.int32, device=symbols.device)
    tallies = torch.empty(2, blocks, dtype=torch.int32, device=symbols.device)
    arguments = symbols, contexts, entries, room, heads, tallies, n, blocks, first, block
    launch(_encode, (blocks,), *arguments, LANES=lanes, num_warps=1)
    return heads, tallies


def move(room: Tensor, sizes: Tensor, ends: Tensor, out: Tensor, place: int, block: int) -> None:
    """The words of every block to ``out`` uint8, behind those of the block before; the first ones to ``place``."""
    grid = len(ends), triton.cdiv(2 * min(block, room.numel()), COPIED)
    launch(_move, grid, room, sizes, ends, out, place, out.numel(), block, TILE=COPIED)


def decode_blocks(
    symbols: Tensor,
    contexts: Tensor | None,
    slots: Tensor,
    words: Tensor,
    ends: Tensor,
    states: Tensor,
    escape: int,
    block: int,
) -> Tensor:
    """Write ``symbols`` from blocks whose words end at ``ends``; returns int32 ``[blocks]``: escape symbols in each."""
    n, blocks = symbols.numel(), len(ends)
    assert n < MOST, "positions are int32"
    tallies = torch.empty(2, blocks, dtype=torch.int32, device=symbols.device)
    arguments = symbols, contexts, slots, words, ends, states, tallies, n, blocks, escape, block
    launch(_decode, (blocks,), *arguments, LANES=lanes_of(n), num_warps=1)
    return tallies[0]


@triton.jit(do_not_specialize=["n"])
def _count(symbols, contexts, counts, n, TILE: tl.constexpr):
    """Adds what this program's tiles have of one context."""
    context = tl.program_id(1)
    symbol = tl.arange(0, 256)
    found = tl.zeros([256], tl.int32)
    others = tl.zeros([TILE], tl.int32)  # beyond the end or of other contexts: they are counted as zeros first
    for first in range(tl.program_id(0) * TILE, n, tl.num_programs(0) * TILE):
        i = first + tl.arange(0, TILE)
        mask = i < n
        here = tl.load(symbols + i, mask=mask, other=0).to(tl.int32)
        if contexts is not None:
            mask = mask & (tl.load(contexts + i, mask=mask, other=0).to(tl.int32) == context)
        found += tl.histogram(tl.where(mask, here, 0), 256)
        others += 1 - mask.to(tl.int32)
    found -= tl.where(symbol == 0, tl.sum(others, axis=0), 0)
    tl.atomic_add(counts + context * 256 + symbol, found, mask=found > 0)


@triton.jit
def _ones(mask):
    """How many bits of uint32 words are set, in the way that LLVM knows to be one instruction."""
    mask = mask - ((mask >> 1) & 0x55555555)
    mask = (mask & 0x33333333) + ((mask >> 2) & 0x33333333)
    mask = (mask + (mask >> 4)) & 0x0F0F0F0F
    return (((mask * 0x01010101) >> 24) & 255).to(tl.int32)  # the interpreter's words have 64 bits after a sum


@triton.jit
def _table_place(symbols, contexts, i, size):
    """Where tables ``[contexts, 256]`` have a block's symbols ``i``; no matter where, if there are none."""
    mask = (i >= 0) & (i < size)
    place = tl.load(symbols + i, mask=mask, other=0).to(tl.int32)
    if contexts is not None:
        place += tl.load(contexts + i, mask=mask, other=0).to(tl.int32) * 256
    return place


@triton.jit
def _entry(entries, place, i, size):
    """What is in that place for symbols ``i``."""
    return tl.load(entries + place, mask=(i >= 0) & (i < size), other=NOTHING)


@triton.jit
def _absorb(x, entry):
    """One group: its states after it, and which of those before it were too large, and put out their low halves."""
    low = entry.to(tl.uint32)
    frequency = (low >> TO_FREQUENCY) & MOST_FREQUENT
    full = (x >> OVERFLOW) >= frequency
    x = tl.where(full, x >> 16, x)
    quotient = tl.umulhi(x + ((low >> TO_ADDEND) & 1), (entry >> TO_FACTOR).to(tl.uint32)) >> (
        (low >> TO_SHIFT) & SHIFT
    )
    return x + (low & START) + quotient * (ALL - frequency), full  # (x // f) 2^12 + x % f + start


@triton.jit
def _put_out(words, place, x, full, bits):
    """The low halves of the states that were too large, from ``place`` on; returns where they end."""
    chosen = tl.sum(tl.where(full, bits, 0), axis=0)
    tl.store(words + place + _ones(chosen & (bits - 1)), (x & 0xFFFF).to(tl.int16), mask=full)
    return place + _ones(chosen)


@triton.jit
def _is_rare(entry):
    return (entry >> TO_RARE).to(tl.int32) & 1


@triton.jit(do_not_specialize=["n", "blocks", "first", "span"])
def _encode(symbols, contexts, entries, words, heads, tallies, n, blocks, first, span, LANES: tl.constexpr):
    block = tl.program_id(0)
    begin = block.to(tl.int64) * span
    size = tl.minimum(n - begin, span).to(tl.int32)
    symbols += begin
    words += begin
    if contexts is not None:
        contexts += begin
    lane = tl.arange(0, LANES)
    bits = tl.full([LANES], 1, tl.uint32) << lane.to(tl.uint32)
    x = tl.full([LANES], SMALLEST, tl.uint32)
    place = tl.zeros([], tl.int32)
    rare = tl.zeros([LANES], tl.int32)
    groups = tl.cdiv(size, LANES)
    # Four groups at a time, last to first. Their entries were loaded one round ago, their symbols two.
    i = (groups - 1) * LANES + lane
    e0 = _entry(entries, _table_place(symbols, contexts, i, size), i, size)
    e1 = _entry(entries, _table_place(symbols, contexts, i - LANES, size), i - LANES, size)
    e2 = _entry(entries, _table_place(symbols, contexts, i - 2 * LANES, size), i - 2 * LANES, size)
    e3 = _entry(entries, _table_place(symbols, contexts, i - 3 * LANES, size), i - 3 * LANES, size)
    p0 = _table_place(symbols, contexts, i - 4 * LANES, size)
    p1 = _table_place(symbols, contexts, i - 5 * LANES, size)
    p2 = _table_place(symbols, contexts, i - 6 * LANES, size)
    p3 = _table_place(symbols, contexts, i - 7 * LANES, size)
    for _ in range(0, groups, 4):
        n0 = _entry(entries, p0, i - 4 * LANES, size)
        n1 = _entry(entries, p1, i - 5 * LANES, size)
        n2 = _entry(entries, p2, i - 6 * LANES, size)
        n3 = _entry(entries, p3, i - 7 * LANES, size)
        p0 = _table_place(symbols, contexts, i - 8 * LANES, size)
        p1 = _table_place(symbols, contexts, i - 9 * LANES, size)
        p2 = _table_place(symbols, contexts, i - 10 * LANES, size)
        p3 = _table_place(symbols, contexts, i - 11 * LANES, size)
        # nothing waits for a sum of bits before all four are under way
        x1, full0 = _absorb(x, e0)
        x2, full1 = _absorb(x1, e1)
        x3, full2 = _absorb(x2, e2)
        x4, full3 = _absorb(x3, e3)
        place = _put_out(words, place, x, full0, bits)
        place = _put_out(words, place, x1, full1, bits)
        place = _put_out(words, place, x2, full2, bits)
        place = _put_out(words, place, x3, full3, bits)
        rare += _is_rare(e0) + _is_rare(e1) + _is_rare(e2) + _is_rare(e3)
        x = x4
        e0, e1, e2, e3 = n0, n1, n2, n3
        i -= 4 * LANES
    tl.store(heads + blocks + block * LANES + lane, x.to(tl.int32, bitcast=True))
    tl.store(heads + block, place + tl.where(block == 0, first, 0))
    tl.store(tallies + block, place)
    tl.store(tallies + blocks + block, tl.sum(rare, axis=0))


@triton.jit(do_not_specialize=["offset", "limit", "span"])
def _move(room, sizes, ends, out, offset, limit, span, TILE: tl.constexpr):
    """One tile of the bytes of a block's words to where they follow those of the block before."""
    block = tl.program_id(0)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    size = tl.load(sizes + block)
    word = tl.load(room + block.to(tl.int64) * span + i // 2, mask=i < 2 * size, other=0).to(tl.int32)
    place = offset + 2 * (tl.load(ends + block) - size) + i
    tl.store(out + place, (word >> (i % 2 * 8)).to(tl.uint8), mask=(i < 2 * size) & (place < limit))


@triton.jit(do_not_specialize=["n", "blocks", "escape", "span"])
def _decode(symbols, contexts, slots, words, ends, heads, tallies, n, blocks, escape, span, LANES: tl.constexpr):
    block = tl.program_id(0)
    lane = tl.arange(0, LANES)
    bits = tl.full([LANES], 1, tl.uint32) << lane.to(tl.uint32)
    x = tl.load(heads + block * LANES + lane).to(tl.uint32, bitcast=True)
    top = tl.load(ends + block - 1, mask=block > 0, other=0)
    place = (tl.load(ends + block) - top).to(tl.int32)
    words += top
    begin = block.to(tl.int64) * span
    size = tl.minimum(n - begin, span).to(tl.int32)
    symbols += begin
    if contexts is not None:
        contexts += begin
    # What will be looked up is brought into the cache, all at once: one by one, every second group would wait for some.
    sector = tl.arange(0, SECTORS)
    ahead = tl.load(words + place - 1 - 16 * sector, mask=16 * sector < place, other=0).to(tl.int32)
    if contexts is None:
        ahead += tl.load(slots + 8 * sector) >> 16  # what is summed must not overflow
    tl.store(tallies + blocks + block, tl.sum(ahead, axis=0))  # only what is stored is loaded
    escapes = tl.zeros([LANES], tl.int32)
    for group in range(0, size, LANES):
        i = group + lane
        mask = i < size
        row = tl.zeros_like(lane)
        if contexts is not None:
            row += tl.load(contexts + i, mask=mask, other=0).to(tl.int32) * ALL
        slot = tl.load(slots + row + (x & (ALL - 1)).to(tl.int32))
        tl.store(symbols + i, slot.to(tl.uint8), mask=mask)
        escapes += (mask & ((slot & 255) == escape)).to(tl.int32)
        slot = slot.to(tl.uint32, bitcast=True)
        high = x >> SCALE
        x = (slot >> TO_FEWER) * high + high + ((slot >> TO_WITHIN) & (ALL - 1))
        # Beyond the last symbol states go on as they may: nothing comes after it.
        short = x < SMALLEST
        chosen = tl.sum(tl.where(short, bits, 0), axis=0)
        place -= _ones(chosen)
        # A damaged stream may ask for more words than there are.
        word = tl.load(words + place + _ones(chosen & (bits - 1)), mask=short & (place >= 0), other=0)
        x = tl.where(short, x << 16 | (word.to(tl.uint32) & 0xFFFF), x)
    tl.store(tallies + block, tl.sum(escapes, axis=0))
