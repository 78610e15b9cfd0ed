"""Random numbers as a function of a key and a counter as numba kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba.core import types
from torch import Tensor

from comm_compress.kernels.elements.random.reference import SHARED, TILE
from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.threads import over_blocks
from comm_compress.kernels.tools.vectors.llvm import FLOAT, WORD, intrinsic, load_lanes, repeated
from comm_compress.kernels.tools.vectors.vectors import FLOATS, LANES

UNIT = np.float32(2.0**-24)


def random_bits(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    words = torch.empty(n, dtype=torch.int32)
    over_blocks(_random, n, 1, np.uint32(key[0]), np.uint32(key[1]), words.numpy().view(np.uint32))
    return words


def noise_bits(key: tuple[int, int], num_rows: int, n: int, device: torch.device) -> Tensor:
    words = torch.empty(num_rows, n, dtype=torch.int32)
    tiles = math.ceil(n / TILE)
    for number, row in enumerate(words):
        settings = (np.uint32(number * tiles * SHARED), np.uint32(key[0]), np.uint32(key[1]))
        over_blocks(_noise, tiles, TILE, *settings, row.numpy().view(np.uint32))
    return words


def uniform(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    numbers = torch.empty(n)
    over_blocks(_uniform, n, 1, np.uint32(key[0]), np.uint32(key[1]), numbers.numpy())
    return numbers


# numba computes with uint32 in 64 bits, and vectors of these hold half as many: hence a cast around every operation.


@compiled
def mix(word: np.uint32) -> np.uint32:
    """A permutation of all 32-bit words that looks random."""
    word = np.uint32(np.uint32(word ^ np.uint32(word >> np.uint32(16))) * np.uint32(0x21F0AAAD))
    word = np.uint32(np.uint32(word ^ np.uint32(word >> np.uint32(15))) * np.uint32(0xD35A2D97))
    return np.uint32(word ^ np.uint32(word >> np.uint32(15)))


@compiled
def hash_counter(counter: np.uint32, low: np.uint32, high: np.uint32) -> np.uint32:
    """The 32 random bits of one counter under a key of two words."""
    word = np.uint32(np.uint32(mix(np.uint32(counter ^ low)) * np.uint32(0x9E3779B1)) + low)
    return np.uint32(mix(np.uint32(word ^ high)))


@compiled
def unit_number(word: np.uint32) -> np.float32:
    """32 random bits as a float32 in [0, 1), a multiple of 2^-24."""
    return np.float32(np.int32(np.uint32(word >> np.uint32(8)))) * UNIT


@compiled
def noise_piece(row_counter: np.uint32, first: int, low: np.uint32, high: np.uint32, words: Array) -> None:
    """`noise_bits` of a row's elements from ``first`` on, as many as ``words`` (uint32) holds.

    ``row_counter``: 512 for each tile of the rows before. A piece of 1024 from a multiple of 1024 takes 512 hashes.
    """
    if first % TILE == 0 and words.size <= TILE:
        hashed = min(SHARED, words.size)
        hash_run(np.uint32(row_counter + np.uint32(first // 2)), low, high, words[:hashed])
        _turn_half(words[: words.size - hashed], words[hashed:])
        return
    for i in range(words.size):
        place = np.uint32(first + i)
        counter = np.uint32(
            row_counter + (place >> np.uint32(10)) * np.uint32(SHARED) + (place & np.uint32(SHARED - 1))
        )
        word = hash_counter(counter, low, high)
        turned = np.uint32((word << np.uint32(16)) | (word >> np.uint32(16)))
        words[i] = turned if place & np.uint32(SHARED) else word


@intrinsic
def load_fractions(context: Any, words: Any, i: Any, end: Any) -> Any:
    """32 random words (uint32; zeros from ``end`` on) as floats in [0, 1), multiples of 2^-24."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, i, end = arguments
        drawn = load_lanes(context, builder, signature.args[0], words, i, end, LANES)
        upper = builder.lshr(drawn, repeated(8, ir.VectorType(WORD, LANES)))
        vector = ir.VectorType(FLOAT, LANES)
        return builder.fmul(builder.sitofp(upper, vector), repeated(float(UNIT), vector))

    return FLOATS(words, types.intp, types.intp), build


@compiled
def hash_run(counter: np.uint32, low: np.uint32, high: np.uint32, words: Array) -> None:
    """`hash_counter` of as many counters, from ``counter`` on, as ``words`` (uint32) holds."""
    for i in range(words.size):
        words[i] = hash_counter(np.uint32(counter + np.uint32(i)), low, high)


@compiled
def _turn_half(source: Array, turned: Array) -> None:
    for i in range(turned.size):
        turned[i] = np.uint32((source[i] << np.uint32(16)) | (source[i] >> np.uint32(16)))


@compiled
def _random(first: int, last: int, low: np.uint32, high: np.uint32, words: Array) -> None:
    hash_run(np.uint32(first), low, high, words[first:last])


@compiled
def _noise(first: int, last: int, row_counter: np.uint32, low: np.uint32, high: np.uint32, words: Array) -> None:
    for tile in range(first, last):
        noise_piece(row_counter, tile * TILE, low, high, words[tile * TILE : min((tile + 1) * TILE, words.size)])


@compiled
def _uniform(first: int, last: int, low: np.uint32, high: np.uint32, numbers: Array) -> None:
    for i in range(first, last):
        numbers[i] = unit_number(hash_counter(np.uint32(i), low, high))
