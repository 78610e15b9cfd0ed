"""Marked symbols, which a stream has as literals: where they are, and how they are taken out and put back."""

from __future__ import annotations

import numpy as np

from comm_compress.kernels.coding.frequencies import Bytes, Counts, Marks
from comm_compress.kernels.coding.loops.block_loops import place_of
from comm_compress.kernels.coding.loops.octets import TOGETHER, reaching, within
from comm_compress.kernels.tools.compiled import compiled
from comm_compress.kernels.tools.vectors.unaligned import lowest_bit

TOO_SHORT = -1  # there are fewer literals than symbols that stand for one


@compiled
def positions_of(symbols: Bytes, marked: Marks, positions: Counts) -> int:
    """Where the marked symbols are, ascending; returns how many.

    The last of ``positions`` is no result: it takes what there is no room for, as in a stream that was damaged.
    """
    found, last = 0, positions.size - 1
    for i in range(symbols.size):
        positions[min(found, last)] = i
        found += marked[symbols[i]]
    return found


@compiled
def positions_reaching(symbols: Bytes, contexts: Bytes, least: Bytes, marked: Marks, positions: Counts) -> int:
    """As `positions_of`, marks of each context; ``least`` uint8 ``[256]``: the first that a context has marked.

    Rare symbols of numbers that are folded (0, -1, 1, -2, ...) are those from some number on.
    """
    found, last, whole = 0, positions.size - 1, symbols.size // TOGETHER * TOGETHER
    for i in range(0, whole, TOGETHER):
        mask = reaching(symbols, contexts, i, least)
        while mask:
            place = i + lowest_bit(mask)
            positions[min(found, last)] = place
            found += marked[place_of(symbols, contexts, place)]
            mask &= mask - np.uint64(1)
    for i in range(whole, symbols.size):
        positions[min(found, last)] = i
        found += marked[place_of(symbols, contexts, i)]
    return found


@compiled
def positions_within(symbols: Bytes, low: np.uint8, width: np.uint8, positions: Counts) -> int:
    """As `positions_of`, where the marked symbols are neighbours, modulo 256: ``low`` and ``width`` more."""
    found, last, whole = 0, positions.size - 1, symbols.size // TOGETHER * TOGETHER
    for i in range(0, whole, TOGETHER):
        mask = within(symbols, i, low, width)
        while mask:
            positions[min(found, last)] = i + lowest_bit(mask)
            found += 1
            mask &= mask - np.uint64(1)
    for i in range(whole, symbols.size):
        if np.uint8(symbols[i] - low) <= width:
            positions[min(found, last)] = i
            found += 1
    return found


@compiled
def put_literals(symbols: Bytes, rare: Marks, literals: Bytes, place: int) -> int:
    """Write the rare symbols in order from ``literals[place]`` on; returns how many there are.

    One byte behind them is written too.
    """
    low, width = _interval_of(rare)
    found, whole = place, symbols.size // TOGETHER * TOGETHER
    for i in range(0, whole, TOGETHER):
        mask = within(symbols, i, low, width)
        while mask:
            symbol = symbols[i + lowest_bit(mask)]
            literals[found] = symbol
            found += rare[symbol]
            mask &= mask - np.uint64(1)
    for i in range(whole, symbols.size):
        if rare[symbols[i]]:
            literals[found] = symbols[i]
            found += 1
    return found - place


@compiled
def _interval_of(rare: Marks) -> tuple[np.uint8, np.uint8]:
    """First and width of the shortest interval, modulo 256, that has all rare symbols: signed numbers' tails."""
    run, longest, low = 0, 0, 0
    for symbol in range(512):
        if rare[symbol & 255]:
            if run > longest:
                longest, low = run, symbol
            run = 0
        else:
            run += 1
    return np.uint8(low & 255), np.uint8(255 - longest)


@compiled
def take_literals(symbols: Bytes, escape: np.uint8, literals: Bytes, place: int) -> int:
    """Write ``literals`` from one of them on where symbols are the escape symbol; returns the next, or `TOO_SHORT`."""
    whole = symbols.size // TOGETHER * TOGETHER
    for i in range(0, whole, TOGETHER):
        mask = within(symbols, i, escape, np.uint8(0))
        while mask:
            if place == literals.size:
                return TOO_SHORT
            symbols[i + lowest_bit(mask)] = literals[place]
            place += 1
            mask &= mask - np.uint64(1)
    for i in range(whole, symbols.size):
        if symbols[i] == escape:
            if place == literals.size:
                return TOO_SHORT
            symbols[i] = literals[place]
            place += 1
    return place
