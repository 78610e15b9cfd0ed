"""Random numbers as a function of a key and a counter: the definition in torch operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SHARED = 512  # elements i and i + 512 of a tile of 1024 share a word
TILE = 2 * SHARED


def random_bits(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    low, high = (_as_int32(word) for word in key)
    words = mix(torch.arange(n, dtype=torch.int32, device=device) ^ low)
    return mix((words * _as_int32(0x9E3779B1) + low) ^ high)


def noise_bits(key: tuple[int, int], num_rows: int, n: int, device: torch.device) -> Tensor:
    tiles = math.ceil(n / TILE)
    words = random_bits(key, num_rows * tiles * SHARED, device).view(num_rows, tiles, SHARED)
    return torch.cat((words, (words << 16) | _shifted(words, 16)), 2).view(num_rows, tiles * TILE)[:, :n]


def uniform(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    return as_fractions(random_bits(key, n, device))


def as_fractions(words: Tensor) -> Tensor:
    """float32 in [0, 1): the upper 24 bits of int32 words as multiples of 2^-24."""
    return _shifted(words, 8).float() * 2.0**-24


def mix(words: Tensor) -> Tensor:
    """A permutation of all 32-bit words, int32, that looks random."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
        words = (words ^ _shifted(words, shift)) * _as_int32(factor)
    return words ^ _shifted(words, 15)


def _shifted(words: Tensor, places: int) -> Tensor:
    """Logical shift right (torch's int32 shift keeps the sign)."""
    return (words >> places) & ((1 << (32 - places)) - 1)


def _as_int32(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
