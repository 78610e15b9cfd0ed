"""Random numbers as a function of key and counter as numba kernels: the reference's bits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.numba_tools import Array, compiled, over_blocks


def random_bits(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """As `random_reference.random_bits`, on CPU."""
    words = torch.empty(n, dtype=torch.int32)
    over_blocks(_random, n, 1, np.uint32(key[0]), np.uint32(key[1]), words.numpy())
    return words


def uniform(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """As `random_reference.uniform`, on CPU."""
    numbers = torch.empty(n)
    over_blocks(_uniform, n, 1, np.uint32(key[0]), np.uint32(key[1]), numbers.numpy())
    return numbers


@compiled
def mix(word: np.uint32) -> np.uint32:
    """As `random_reference.mix`."""
    word = np.uint32((word ^ (word >> np.uint32(16))) * np.uint32(0x21F0AAAD))
    word = np.uint32((word ^ (word >> np.uint32(15))) * np.uint32(0xD35A2D97))
    return np.uint32(word ^ (word >> np.uint32(15)))


@compiled
def hash_counter(counter: np.uint32, low: np.uint32, high: np.uint32) -> np.uint32:
    """The 32 random bits of one counter under a key of two words."""
    word = np.uint32(mix(counter ^ low) * np.uint32(0x9E3779B1) + low)
    word = np.uint32(mix(word ^ high) * np.uint32(0x9E3779B1) + high)
    return np.uint32(mix(word))


@compiled
def _random(first: int, last: int, low: np.uint32, high: np.uint32, words: Array) -> None:
    for i in range(first, last):
        words[i] = np.int32(hash_counter(np.uint32(i), low, high))


@compiled
def _uniform(first: int, last: int, low: np.uint32, high: np.uint32, numbers: Array) -> None:
    for i in range(first, last):
        numbers[i] = np.float32(hash_counter(np.uint32(i), low, high) >> np.uint32(8)) * np.float32(2.0**-24)
