"""The bytes of a table of frequencies in compiled code: what `frequencies.Table` reads and writes in Python.

A CPU codes a stream in one compiled call, which these are part of; a GPU's tables are made by them, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from comm_compress.kernels.coding.frequencies import LISTED, PRECISION, TOTAL, Bytes, Counts, Marks
from comm_compress.kernels.tools.compiled import compiled


@compiled
def rare_symbols(counts: Counts, frequencies: Counts, escape: int) -> tuple[Marks, int]:
    """Which symbols go as literals, bool ``[256]``, and how many of them ``counts`` has in all.

    They are the escape symbol and those without a frequency; none where ``escape`` is -1.
    """
    rare = np.zeros(256, np.bool_)
    literals: Any = 0
    if escape >= 0:
        for symbol in range(256):
            if frequencies[symbol] == 0 or symbol == escape:
                rare[symbol] = True
                literals += counts[symbol]
    return rare, literals


@compiled
def write_table(frequencies: Counts, escape: int, out: Bytes) -> None:
    """Write a table of ``frequencies`` int64 ``[256]`` to ``out``, in the format of `frequencies.Table.write`.

    ``escape``: the escape symbol, -1: none. ``out`` uint8 has room for `frequencies.table_bytes`.
    """
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
def read_table(stream: Bytes, frequencies: Counts) -> tuple[int, int]:
    """Read the table at the front of ``stream`` uint8, in the format of `frequencies.Table.write`.

    Written: ``frequencies`` int64 ``[256]``, zeros before. Returns the escape symbol (-1: none) and the table's bytes.
    """
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
