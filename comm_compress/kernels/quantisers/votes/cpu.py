"""Votes on the sign of every element as numba kernels, in one pass over memory."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from comm_compress.kernels.elements.random.cpu import hash_counter
from comm_compress.kernels.elements.residual.cpu import few_as_float32
from comm_compress.kernels.quantisers.votes.reference import ALL_ZERO, FINITE, NOT_FINITE, weights
from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.threads import over_blocks
from comm_compress.kernels.tools.vectors.sign_sums import sum_expanded
from comm_compress.kernels.tools.vectors.vectors import LANES, above, below, bits_of, equal, load, store_mask

MARKS = (np.uint8(ALL_ZERO), np.uint8(FINITE), np.uint8(NOT_FINITE))
INFINITE = np.float32(np.inf)


def encode(rows: Tensor, group_size: int, key: tuple[int, int], marks: Tensor, bits: Tensor) -> None:
    rows, words = few_as_float32(rows.contiguous())[0], (np.uint32(key[0]), np.uint32(key[1]))
    for row in range(rows.shape[0]):
        arrays = (bits_of(rows[row]), marks[row].numpy(), bits[row].numpy())
        over_blocks(_encode, marks.shape[1], group_size, group_size, row * rows.shape[1], *words, *arrays)


def decode(marks: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    for row in range(out.shape[0]):
        one = slice(row, row + 1)
        votes = weights(marks[one])
        sum_expanded(bits[one], votes, -votes, group_size, out[row])


def majority(marks: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    votes = weights(marks)
    sum_expanded(bits, votes, -votes, group_size, out, vote=True)


@compiled
def _encode(
    first: int,
    last: int,
    group_size: int,
    counter: int,
    low: np.uint32,
    high: np.uint32,
    rows: Array,
    marks: Array,
    bits: Array,
) -> None:
    zero, everything = np.float32(0), np.uint32(0xFFFFFFFF)
    for group in range(first, last):
        start, end = group * group_size, min((group + 1) * group_size, rows.size)
        zeros, finite = everything, everything
        for i in range(start, end, LANES):
            x = load(rows, i, end)
            positive, null = above(x, zero), equal(x, zero)
            if null:
                positive = np.uint32(positive | (null & _coins(np.uint32(counter + i), low, high)))
            store_mask(bits, i >> 3, end - i, positive)
            zeros = np.uint32(zeros & null)
            finite = np.uint32(finite & below(x, INFINITE) & above(x, -INFINITE))
        mark = MARKS[0] if zeros == everything else MARKS[1]
        marks[group] = mark if finite == everything else MARKS[2]


@compiled
def _coins(counter: np.uint32, low: np.uint32, high: np.uint32) -> np.uint32:
    """The lowest random bits of 32 counters."""
    coins = np.uint32(0)
    for lane in range(LANES):
        coin = np.uint32(hash_counter(np.uint32(counter + np.uint32(lane)), low, high) & np.uint32(1))
        coins = np.uint32(coins | np.uint32(coin << np.uint32(lane)))
    return coins
