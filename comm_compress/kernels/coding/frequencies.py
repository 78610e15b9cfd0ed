"""How often each byte occurs, out of 2^12, and how a stream says so: what rANS coders share."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from comm_compress.kernels.tools.compiled import compiled

PRECISION = 12  # bits of a frequency: what a decoder looks up for a slot fits into one word of 32 bits
TOTAL = 1 << PRECISION
PLACES = np.arange(PRECISION)
START_BITS = 16  # of an encoder's entry; the frequency is above
WITHIN, FREQUENCY = 8, 8 + PRECISION  # where a decoder's slot has its two numbers; the symbol is below
BITS = PRECISION - np.log2(np.arange(TOTAL + 1).clip(1))  # that a symbol of a frequency takes
LISTED = 32  # symbols in use that are listed by name; more are marked in a bitmap of as many bytes
# Times what a frequency of 1 stands for: symbols that occur no more often may become literals.
RARE = (0.0, 0.25, 1.0, 4.0)
MOST_BYTES = 3 + 256 // 8 + math.ceil(255 * PRECISION / 8)  # of a table

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]


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
        frequencies, escape = cheapest(counts)
        return cls(frequencies, escape if escape >= 0 else None)

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


@compiled
def cheapest(counts: Counts) -> tuple[Counts, int]:
    """The table of the fewest bits in all, and its escape symbol (-1: none)."""
    least = counts.sum() / TOTAL  # what a frequency of 1 stands for
    best, best_escape, fewest, last = counts, -1, np.inf, -1
    for times in RARE:
        own, number = counts.copy(), 0
        for symbol in range(256):
            if 0 < counts[symbol] <= times * least:
                own[symbol] = 0
                number += 1
        if number < 2:
            own, number = counts, 0
        if number == last:
            continue
        literals, escape, last = 0, -1, number
        if number:
            literals, escape = counts.sum() - own.sum(), np.flatnonzero(counts != own)[0]
            own[escape] = literals
        frequencies = _normalized(own)
        spent = 8.0 * (literals + table_bytes(frequencies, number > 0))
        for symbol in range(256):
            spent += own[symbol] * BITS[frequencies[symbol]]
        if spent < fewest:
            best, best_escape, fewest = frequencies, escape, spent
    return best, best_escape


@compiled
def _normalized(counts: Counts) -> Counts:
    """Frequencies proportional to ``counts``, 1 at least where a symbol occurs, 2^12 in all.

    What is missing after rounding down goes to the largest remainders; what is too much, the largest frequencies give.
    """
    total = counts.sum()
    frequencies: Counts = counts * TOTAL // total
    for symbol in range(256):
        if counts[symbol] and not frequencies[symbol]:
            frequencies[symbol] = 1
    missing = TOTAL - frequencies.sum()
    if missing > 0:
        frequencies[_in_order(-(counts * TOTAL % total))[:missing]] += 1
    while missing < 0:
        giving = min(-missing, (frequencies > 1).sum())
        frequencies[_in_order(-frequencies)[:giving]] -= 1
        missing += giving
    return frequencies


@compiled
def _in_order(keys: Counts) -> Counts:
    """Places of the smallest, the next, ...; of equals, the first."""
    places: Counts = np.argsort(keys, kind="mergesort")  # the stable one
    return places


@compiled
def table_bytes(frequencies: Counts, escape: bool) -> int:
    """Bytes of `Table.write`."""
    used = int(np.count_nonzero(frequencies))
    return 2 + int(escape) + min(used, LISTED) + ((used - 1) * PRECISION + 7) // 8


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
    slots = np.empty((len(frequencies), TOTAL), np.uint32)
    fill_slots(frequencies, slots)
    return slots


@compiled
def fill_slots(frequencies: Counts, slots: Words) -> None:
    """Write what `slots_of` gives to ``slots``."""
    for table in range(frequencies.shape[0]):
        slot = 0
        for symbol in range(256):
            f = frequencies[table, symbol]
            for within in range(f):
                slots[table, slot] = (f - 1) << FREQUENCY | within << WITHIN | symbol
                slot += 1
        slots[table, slot:] = 0
