"""Random subsets as numba kernels: the numbers of a block are permuted side by side."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.elements.random.cpu import mix, random_bits
from comm_compress.kernels.selection.subsets.reference import ROUNDS, halves
from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.threads import over_blocks

BLOCK = 1024  # numbers permuted at a time
WORTH = 16  # elements of a plain pass that a number takes as long as


def random_subset(key: tuple[int, int], n: int, k: int, device: torch.device) -> Tensor:
    numbers = torch.empty(k, dtype=torch.int32)
    keys = random_bits(key, ROUNDS, device).numpy().view(np.uint32)
    over_blocks(_draw, math.ceil(k / BLOCK), WORTH * BLOCK, n, *halves(n), keys, numbers.numpy())
    return numbers.sort().values.long()


@compiled
def _draw(first: int, last: int, n: int, bits: int, low: int, keys: Array, drawn: Array) -> None:
    left, right = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    places = np.empty(BLOCK, np.int64)
    for start in range(first * BLOCK, min(last * BLOCK, drawn.size), BLOCK):
        waiting = min(BLOCK, drawn.size - start)
        for i in range(waiting):
            places[i], drawn[start + i] = start + i, start + i
        while waiting:
            for i in range(waiting):
                number = drawn[places[i]]
                left[i], right[i] = number >> low, number & ((1 << low) - 1)
            high_half, low_half = left[:waiting], right[:waiting]
            for round_ in range(0, keys.size, 2):
                _add_hash(high_half, low_half, keys[round_], np.uint32((1 << (bits - low)) - 1))
                _add_hash(low_half, high_half, keys[round_ + 1], np.uint32((1 << low) - 1))
            beyond = 0
            for i in range(waiting):
                place = places[i]
                drawn[place], places[beyond] = np.int64(left[i]) << low | np.int64(right[i]), place
                beyond += int(drawn[place] >= n)
            waiting = beyond


@compiled
def _add_hash(half: Array, other: Array, key: np.uint32, mask: np.uint32) -> None:
    for i in range(half.size):
        half[i] ^= mix(other[i] ^ key) & mask
