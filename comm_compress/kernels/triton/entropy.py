"""The loops of rANS as Triton kernels: one warp codes one block.

The CPU sees the histogram, to make tables of it, and the tables and sizes of a stream. Symbols and words stay on the
GPU.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.common.frequencies import (
    FREQUENCY,
    PRECISION,
    START_BITS,
    TOTAL,
    WITHIN,
    Counts,
    Words,
    entries_of,
    slots_of,
)
from comm_compress.kernels.common.rans_stream import BLOCK, LOWEST, lanes_of
from comm_compress.kernels.common.scratch import Scratch
from comm_compress.kernels.reference.entropy import find, histogram
from comm_compress.kernels.triton.launching import launch

__all__ = ["decode", "encode", "find", "histogram"]  # the last two are the reference's

OVERFLOW, SCALE = tl.constexpr(32 - PRECISION), tl.constexpr(PRECISION)
TO_FREQUENCY, START = tl.constexpr(START_BITS), tl.constexpr((1 << START_BITS) - 1)  # of an entry
ONE = tl.constexpr(1 << START_BITS)  # the entry of a frequency of 1: nothing is divided by zero beyond the end
TO_WITHIN, TO_FEWER = tl.constexpr(WITHIN), tl.constexpr(FREQUENCY)  # of a slot
ALL, SMALLEST, SPAN = tl.constexpr(TOTAL), tl.constexpr(LOWEST), tl.constexpr(BLOCK)
COPIED = 4096  # words of a block that one program moves


def encode(
    symbols: Tensor, contexts: Tensor | None, frequencies: Counts, starts: Counts, scratch: Scratch
) -> list[Tensor]:
    n, device = symbols.numel(), symbols.device
    lanes, blocks = lanes_of(n), triton.cdiv(n, BLOCK)
    entries = _table(entries_of(frequencies, starts), device)
    room = scratch("words", (n,), torch.int16, device)
    sizes, states = (torch.empty(k, dtype=torch.int32, device=device) for k in (blocks, blocks * lanes))
    launch(_encode, (blocks,), symbols, contexts, entries, room, sizes, states, n, LANES=lanes, num_warps=1)
    ends, counts = sizes.cumsum(0, dtype=torch.int64), sizes.tolist()
    words = torch.empty(sum(counts), dtype=torch.int16, device=device)
    launch(_move, (blocks, triton.cdiv(max(counts), COPIED)), room, sizes, ends, words, TILE=COPIED)
    return [part.view(torch.uint8) for part in (sizes, states, words)]


def decode(
    symbols: Tensor, contexts: Tensor | None, frequencies: Counts, sizes: Tensor, states: Tensor, words: Tensor
) -> None:
    n = symbols.numel()
    slots, ends = _table(slots_of(frequencies), words.device), sizes.cumsum(0, dtype=torch.int64)
    arguments = symbols, contexts, slots, words, ends, states, n
    launch(_decode, (len(ends),), *arguments, LANES=lanes_of(n), num_warps=1)


def _table(entries: Words, device: torch.device) -> Tensor:
    """The bits of the entries, on the GPU."""
    return torch.from_numpy(entries.view(np.int32).ravel()).to(device)


@triton.jit
def _row_of(contexts, i, mask, COLUMNS: tl.constexpr):
    """Where the row of a table begins that contexts choose for elements ``i``: the first, where there are none."""
    row = tl.zeros_like(i)
    if contexts is not None:
        row += tl.load(contexts + i, mask=mask, other=0).to(tl.int32) * COLUMNS
    return row


@triton.jit
def _encode(symbols, contexts, entries, words, sizes, heads, n, LANES: tl.constexpr):
    block = tl.program_id(0)
    lane = tl.arange(0, LANES)
    begin = block * SPAN
    words += begin
    x = tl.full([LANES], SMALLEST, tl.uint32)
    place = tl.zeros([], tl.int32)
    groups = tl.cdiv(tl.minimum(n - begin, SPAN), LANES)
    for group in range(groups):
        i = begin + (groups - 1 - group) * LANES + lane
        mask = i < n
        symbol = tl.load(symbols + i, mask=mask, other=0).to(tl.int32)
        entry = tl.load(entries + _row_of(contexts, i, mask, 256) + symbol, mask=mask, other=ONE)
        frequency = (entry >> TO_FREQUENCY).to(tl.uint32)
        full = mask & ((x >> OVERFLOW) >= frequency)
        before = tl.cumsum(full.to(tl.int32), 0) - full.to(tl.int32)
        tl.store(words + place + before, (x & 0xFFFF).to(tl.int16), mask=full)
        place += tl.sum(full.to(tl.int32), axis=0)
        x = tl.where(full, x >> 16, x)
        # (x // f) 2^12 + x % f + start
        absorbed = x + (entry & START).to(tl.uint32) + x // frequency * (ALL - frequency)
        x = tl.where(mask, absorbed, x)
    tl.store(heads + block * LANES + lane, x.to(tl.int32, bitcast=True))
    tl.store(sizes + block, place)


@triton.jit
def _move(scratch, sizes, ends, words, TILE: tl.constexpr):
    """The words of every block to where they follow those of the block before."""
    block = tl.program_id(0)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    size = tl.load(sizes + block)
    word = tl.load(scratch + block * SPAN + i, mask=i < size, other=0)
    tl.store(words + tl.load(ends + block) - size + i, word, mask=i < size)


@triton.jit
def _decode(symbols, contexts, slots, words, ends, heads, n, LANES: tl.constexpr):
    block = tl.program_id(0)
    lane = tl.arange(0, LANES)
    x = tl.load(heads + block * LANES + lane).to(tl.uint32, bitcast=True)
    words += tl.load(ends + block)
    begin = block * SPAN
    end = tl.minimum(begin + SPAN, n)
    place = tl.zeros([], tl.int32)
    for group in range(begin, end, LANES):
        i = group + lane
        mask = i < end
        slot = tl.load(slots + _row_of(contexts, i, mask, ALL) + (x & (ALL - 1)).to(tl.int32), mask=mask, other=0)
        tl.store(symbols + i, slot.to(tl.uint8), mask=mask)
        slot = slot.to(tl.uint32, bitcast=True)
        high = x >> SCALE
        x = tl.where(mask, (slot >> TO_FEWER) * high + high + ((slot >> TO_WITHIN) & (ALL - 1)), x)
        short = mask & (x < SMALLEST)
        before = tl.cumsum(short.to(tl.int32), 0) - short.to(tl.int32)
        place -= tl.sum(short.to(tl.int32), axis=0)
        word = tl.load(words + place + before, mask=short, other=0).to(tl.uint32) & 0xFFFF
        x = tl.where(short, x << 16 | word, x)
