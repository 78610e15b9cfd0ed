"""Random numbers as a function of key and counter: definitions in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor


def random_bits(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """int32 ``[n]``: 32 random bits for each of the counters 0 to n - 1 under a 64-bit ``key``.

    Three rounds of a 32-bit mixer (constants found by the hash prospector project, public domain), half of the
    key before each of the first two. A function of counter and key: any element can be had alone, on any device.
    """
    words = torch.arange(n, dtype=torch.int32, device=device)
    for word in key:
        words = mix(words ^ _as_int32(word))
        words = words * _as_int32(0x9E3779B1) + _as_int32(word)
    return mix(words)


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


def uniform(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """float32 ``[n]`` in [0, 1): the upper 24 of `random_bits`, each value a multiple of 2^-24."""
    return _shifted(random_bits(key, n, device), 8).float() * 2.0**-24
