"""Static rANS over bytes in plain Python: the definition of the stream, too slow for more than thousands of them.

rANS (Duda, arXiv 1311.2540), range variant: a state x in [2^16, 2^32) absorbs symbol s of frequency f, out of
2^14, by ``x = (x // f) * 2^14 + x % f + start``, after 16 bits left it if it would have grown beyond 32.
Symbols are encoded last to first, and decoded first to last; symbol i belongs to state ``i % 8``.

The frequencies may depend on a context of each symbol that both sides know: one table a context. Stream, little
endian:

    tables                  one a context that occurs, see `Table.write`
    uint32 [blocks]         16-bit words of each block of 2^19 symbols
    uint32 [blocks, 8]      states to start decoding each block from
    uint16 [...]            words, block after block
    uint8 [...]             literals: what the tables' escape symbols stand for, in order

Cost beyond the entropy: 36 bytes a block, about 2 bytes for each symbol in use in each table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PRECISION = 14  # bits of a frequency
TOTAL = 1 << PRECISION
PLACES = np.arange(PRECISION)
STATES = 8
BLOCK = 1 << 19  # symbols coded independently of others: what a thread takes
LOWEST = 1 << 16  # smallest state
LISTED = 32  # symbols in use that are listed by name; more are marked in a bitmap of as many bytes

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint16]
Longs = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]


class Table(NamedTuple):
    """Frequencies int64 ``[256]`` that add up to 2^14, and the symbol that stands for all the rare ones (or None)."""

    frequencies: Counts
    escape: int | None

    @classmethod
    def of(cls, counts: Counts) -> Table:
        """From the counts of each symbol, not all zero.

        A frequency cannot be less than 1. Symbols so rare that this would cost the others more than a literal byte
        each are merged under one of them, the escape symbol.
        """
        total = int(counts.sum())
        rare = (counts > 0) & (counts * (4 * TOTAL) < total)
        if rare.sum() < 2:
            return cls(_normalized(counts), None)
        escape = int(np.flatnonzero(rare)[0])
        merged = np.where(rare, 0, counts)
        merged[escape] = counts[rare].sum()
        return cls(_normalized(merged), escape)

    def write(self) -> bytes:
        """Number of symbols in use less 1, is there an escape symbol, (which,) symbols, 14-bit frequencies less 1.

        The last frequency is what the others leave of 2^14.
        """
        used = np.flatnonzero(self.frequencies)
        escape = b"\0" if self.escape is None else bytes([1, self.escape])
        names = used.astype(np.uint8) if len(used) <= LISTED else np.packbits(self.frequencies > 0)
        bits = (self.frequencies[used[:-1], None] - 1) >> PLACES & 1
        return bytes([len(used) - 1]) + escape + names.tobytes() + np.packbits(bits, bitorder="little").tobytes()

    @classmethod
    def read(cls, stream: Bytes) -> tuple[Table, int]:
        """The table at the front of ``stream``, and how many bytes it took."""
        number, place = int(stream[0]) + 1, 2 + int(stream[1])
        escape = int(stream[2]) if stream[1] else None
        width = min(number, LISTED)
        names = stream[place : place + width]
        used = names if number <= LISTED else np.flatnonzero(np.unpackbits(names))
        place += width
        size = math.ceil((number - 1) * PRECISION / 8)
        bits = np.unpackbits(stream[place : place + size], count=(number - 1) * PRECISION, bitorder="little")
        frequencies = np.zeros(256, np.int64)
        frequencies[used[:-1]] = (bits.reshape(-1, PRECISION).astype(np.int64) << PLACES).sum(1) + 1
        frequencies[used[-1]] = TOTAL - frequencies.sum()
        return cls(frequencies, escape), place + size


def _normalized(counts: Counts) -> Counts:
    """Frequencies proportional to ``counts``, 1 at least where a symbol occurs, 2^14 in all."""
    scaled = counts * TOTAL
    total = int(counts.sum())
    frequencies = np.maximum(scaled // total, counts > 0)
    if missing := max(TOTAL - int(frequencies.sum()), 0):
        frequencies[np.argsort(-(scaled % total), kind="stable")[:missing]] += 1
    while excess := int(frequencies.sum()) - TOTAL:
        order = np.argsort(-frequencies, kind="stable")
        frequencies[order[: min(excess, int((frequencies > 1).sum()))]] -= 1
    return frequencies


def starts_of(frequencies: Counts) -> Counts:
    """Where the slots of each symbol begin, along the last axis."""
    starts: Counts = np.cumsum(frequencies, -1) - frequencies
    return starts


def slots_of(frequencies: Counts) -> Bytes:
    """Which symbol each of 2^14 slots belongs to, table after table."""
    symbols = np.tile(np.arange(256, dtype=np.uint8), len(frequencies))
    slots: Bytes = np.repeat(symbols, frequencies.ravel())
    return slots


class Loops(NamedTuple):
    """What an implementation provides: the loops over all symbols."""

    histogram: Callable[[Bytes, Bytes | None, int], Counts]
    """How often each symbol occurs in each of so many contexts, ``[contexts, 256]``."""
    find: Callable[[Bytes, Bytes | None, Marks, int], Counts]
    """Ascending positions of the symbols that are marked for their context; so many of them."""
    encode: Callable[[Bytes, Bytes | None, Counts, Counts], tuple[Longs, Longs, Words]]
    """Sizes, states and words of all blocks from frequencies and starts ``[contexts, 256]``."""
    decode: Callable[[int, Bytes | None, Counts, Longs, Longs, Words], Bytes]
    """The symbols from their number, contexts and frequencies, and the sizes, states and words."""


def rans_encode(symbols: Tensor, contexts: Tensor | None = None, num_contexts: int = 1) -> Tensor:
    """The stream of ``symbols`` uint8 ``[n]`` on CPU, as uint8 ``[m]``.

    ``contexts`` uint8 ``[n]``, each below ``num_contexts``: which table a symbol is coded with.
    """
    return encode_stream(symbols, contexts, num_contexts, LOOPS)


def rans_decode(stream: Tensor, n: int, contexts: Tensor | None = None, num_contexts: int = 1) -> Tensor:
    """The ``n`` symbols again, from the same contexts."""
    return decode_stream(stream, n, contexts, num_contexts, LOOPS)


def encode_stream(symbols: Tensor, contexts: Tensor | None, num_contexts: int, loops: Loops) -> Tensor:
    """What all implementations share: tables, escapes, and the order of the parts."""
    if symbols.numel() == 0:
        return torch.empty(0, dtype=torch.uint8)
    source, given = symbols.contiguous().numpy(), None if contexts is None else contexts.contiguous().numpy()
    counts = loops.histogram(source, given, num_contexts)
    tables = {c: Table.of(counts[c]) for c in np.flatnonzero(counts.any(1)).tolist()}
    frequencies = _stacked(tables, num_contexts)
    starts = starts_of(frequencies)
    rare = _marked(tables, num_contexts)
    for c, table in tables.items():
        if table.escape is not None:
            rare[c] |= (counts[c] > 0) & (table.frequencies == 0)
            frequencies[c, rare[c]], starts[c, rare[c]] = frequencies[c, table.escape], starts[c, table.escape]
    literals = source[loops.find(source, given, rare, int(counts[rare].sum()))] if rare.any() else source[:0]
    sizes, states, words = loops.encode(source, given, frequencies, starts)
    heads = np.frombuffer(b"".join(t.write() for t in tables.values()), np.uint8)
    parts = [heads, sizes.view(np.uint8), states.view(np.uint8), words.view(np.uint8), literals]
    return torch.from_numpy(np.concatenate(parts))


def decode_stream(stream: Tensor, n: int, contexts: Tensor | None, num_contexts: int, loops: Loops) -> Tensor:
    """The inverse of `encode_stream`."""
    if n == 0:
        return torch.empty(0, dtype=torch.uint8)
    data, given = stream.contiguous().numpy(), None if contexts is None else contexts.contiguous().numpy()
    occurring = [0] if contexts is None else torch.bincount(contexts).nonzero().flatten().tolist()
    tables, place = {}, 0
    for c in occurring:
        tables[c], size = Table.read(data[place:])
        place += size
    blocks = math.ceil(n / BLOCK)
    heads = np.frombuffer(data[place : place + 4 * blocks * (1 + STATES)].tobytes(), "<u4")
    place += heads.nbytes
    sizes, states = heads[:blocks], heads[blocks:]
    words = np.frombuffer(data[place : place + 2 * int(sizes.sum())].tobytes(), "<u2")
    place += words.nbytes
    symbols = loops.decode(n, given, _stacked(tables, num_contexts), sizes, states, words)
    if place < data.size:
        symbols[loops.find(symbols, given, _marked(tables, num_contexts), data.size - place)] = data[place:]
    return torch.from_numpy(symbols)


def _stacked(tables: dict[int, Table], num: int) -> Counts:
    frequencies = np.zeros((num, 256), np.int64)
    for c, table in tables.items():
        frequencies[c] = table.frequencies
    return frequencies


def _marked(tables: dict[int, Table], num: int) -> Marks:
    """The escape symbols."""
    marked = np.zeros((num, 256), np.bool_)
    for c, table in tables.items():
        if table.escape is not None:
            marked[c, table.escape] = True
    return marked


def _histogram(symbols: Bytes, contexts: Bytes | None, num: int) -> Counts:
    combined = symbols.astype(np.int64) + (0 if contexts is None else contexts.astype(np.int64) * 256)
    return np.bincount(combined, minlength=256 * num).reshape(num, 256)


def _find(symbols: Bytes, contexts: Bytes | None, marked: Marks, number: int) -> Counts:
    return np.flatnonzero(marked[0 if contexts is None else contexts, symbols])


def _encode(symbols: Bytes, contexts: Bytes | None, frequencies: Counts, starts: Counts) -> tuple[Longs, Longs, Words]:
    sizes, heads, words = [], [], []
    for begin in range(0, symbols.size, BLOCK):
        states, emitted = [LOWEST] * STATES, []
        for i in reversed(range(begin, min(begin + BLOCK, symbols.size))):
            place = (0 if contexts is None else contexts[i], symbols[i])
            f, start, x = int(frequencies[place]), int(starts[place]), states[(i - begin) % STATES]
            if x >= f << (32 - PRECISION):
                emitted.append(x & 0xFFFF)
                x >>= 16
            states[(i - begin) % STATES] = (x // f << PRECISION) + x % f + start
        sizes.append(len(emitted))
        heads += states
        words += emitted[::-1]
    return np.array(sizes, "<u4"), np.array(heads, "<u4"), np.array(words, "<u2")


def _decode(n: int, contexts: Bytes | None, frequencies: Counts, sizes: Longs, heads: Longs, words: Words) -> Bytes:
    starts, slots = starts_of(frequencies), {}
    symbols = np.empty(n, np.uint8)
    place = 0
    for c, table in enumerate(frequencies):
        slots[c] = slots_of(table[None])
    for block in range(len(sizes)):
        states = [int(x) for x in heads[block * STATES : (block + 1) * STATES]]
        for i in range(block * BLOCK, min((block + 1) * BLOCK, n)):
            x, c = states[i % STATES], 0 if contexts is None else int(contexts[i])
            slot = x % TOTAL
            s = symbols[i] = slots[c][slot]
            x = int(frequencies[c, s]) * (x >> PRECISION) + slot - int(starts[c, s])
            if x < LOWEST:
                x = x << 16 | int(words[place])
                place += 1
            states[i % STATES] = x
    return symbols


LOOPS = Loops(_histogram, _find, _encode, _decode)
