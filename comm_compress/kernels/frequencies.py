"""How often each byte occurs, out of 2^12, and how a stream says so: what rANS coders share."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

PRECISION = 12  # bits of a frequency: what a decoder looks up for a slot fits into one word of 32 bits
TOTAL = 1 << PRECISION
PLACES = np.arange(PRECISION)
START_BITS = 16  # of an encoder's entry; the frequency is above
WITHIN, FREQUENCY = 8, 8 + PRECISION  # where a decoder's slot has its two numbers; the symbol is below
BITS = PRECISION - np.log2(np.arange(TOTAL + 1).clip(1))  # that a symbol of a frequency takes
LISTED = 32  # symbols in use that are listed by name; more are marked in a bitmap of as many bytes
RARE = (0, 0.25, 1, 4)  # times what a frequency of 1 stands for: symbols that occur less often may become literals
MOST_BYTES = 3 + 256 // 8 + math.ceil(255 * PRECISION / 8)  # of a table

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]


class Table(NamedTuple):
    """Frequencies int64 ``[256]`` that add up to 2^12, and the symbol that stands for all the rare ones (or None)."""

    frequencies: Counts
    escape: int | None

    @classmethod
    def of(cls, counts: Counts) -> Table:
        """From the counts of each symbol, not all zero: the table that takes the fewest bits of some.

        A frequency cannot be less than 1, and a symbol has to be named. Rare symbols that would cost more by that
        than a literal byte each are merged under one of them, the escape symbol; `RARE` says what is tried.
        """
        least = int(counts.sum()) / TOTAL  # what a frequency of 1 stands for
        choices = {int(np.count_nonzero((counts > 0) & (counts <= times * least))): times * least for times in RARE}
        tables = [cls._with_rare(counts, most) for most in choices.values()]
        return tables[0] if len(tables) == 1 else min(tables, key=lambda table: table.bits(counts))

    @classmethod
    def _with_rare(cls, counts: Counts, most: float) -> Table:
        """Symbols that occur at most so often are rare."""
        rare = (counts > 0) & (counts <= most)
        if rare.sum() < 2:
            return cls(_normalized(counts), None)
        escape = int(np.flatnonzero(rare)[0])
        merged = np.where(rare, 0, counts)
        merged[escape] = counts[rare].sum()
        return cls(_normalized(merged), escape)

    def bits(self, counts: Counts) -> float:
        """What symbols that occur so often take, literals and this table included."""
        own, literals, coded = self.frequencies > 0, 0, counts
        if self.escape is not None:
            coded = counts.copy()
            coded[self.escape] += counts[~own].sum()
            literals = int(coded[self.escape])
        spent = float(coded[own] @ BITS[self.frequencies[own]])
        return spent + 8 * (literals + self.size)

    @property
    def size(self) -> int:
        """Bytes of `write`."""
        used = int(np.count_nonzero(self.frequencies))
        return 2 + (self.escape is not None) + min(used, LISTED) + math.ceil((used - 1) * PRECISION / 8)

    def write(self) -> bytes:
        """Number of symbols in use less 1, is there an escape symbol, (which,) symbols, 12-bit frequencies less 1.

        The last frequency is what the others leave of 2^12.
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
    """Frequencies proportional to ``counts``, 1 at least where a symbol occurs, 2^12 in all."""
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


def entries_of(frequencies: Counts, starts: Counts) -> Words:
    """What an encoder looks up, uint32 as ``frequencies``: frequency << START_BITS | start."""
    return (frequencies << START_BITS | starts).astype(np.uint32)


def slots_of(frequencies: Counts) -> Words:
    """What a decoder looks up, uint32 ``[tables, 2^12]``: frequency - 1 | slot - start | symbol.

    In bits from `FREQUENCY`, from `WITHIN` and from 0 on.
    """
    symbols = np.tile(np.arange(256), (len(frequencies), 1))
    slots = np.zeros((len(frequencies), TOTAL), np.uint32)
    for table, (f, start) in enumerate(zip(frequencies, starts_of(frequencies), strict=True)):
        if f.any():
            within = np.arange(TOTAL) - np.repeat(start, f)
            slots[table] = np.repeat(f - 1 << FREQUENCY | symbols[table], f) | within << WITHIN
    return slots
