"""Random numbers as a function of a key and a counter as Triton kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.tools.triton.launching import TILE, as_int32, launch


def random_bits(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    words = torch.empty(n, dtype=torch.int32, device=device)
    _draw(words, key, UNIFORM=False)
    return words


def noise_bits(key: tuple[int, int], num_rows: int, n: int, device: torch.device) -> Tensor:
    words = torch.empty(num_rows, n, dtype=torch.int32, device=device)
    low, high = (as_int32(word) for word in key)
    launch(_noise, (triton.cdiv(n, TILE), num_rows), words, n, low, high, TILE=TILE)
    return words


def uniform(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    numbers = torch.empty(n, dtype=torch.float32, device=device)
    _draw(numbers, key, UNIFORM=True)
    return numbers


def _draw(out: Tensor, key: tuple[int, int], UNIFORM: bool) -> None:
    low, high = (as_int32(word) for word in key)
    launch(_random, (triton.cdiv(out.numel(), TILE),), out, out.numel(), low, high, UNIFORM=UNIFORM, TILE=TILE)


@triton.jit
def _mix(word):
    word = (word ^ (word >> 16)) * tl.full([], 0x21F0AAAD, tl.uint32)
    word = (word ^ (word >> 15)) * tl.full([], 0xD35A2D97, tl.uint32)
    return word ^ (word >> 15)


@triton.jit
def hash_counter(counter, low, high):
    """uint32: the 32 random bits of each uint32 counter under a key of two int32 words."""
    low = low.to(tl.uint32)
    high = high.to(tl.uint32)
    return _mix((_mix(counter ^ low) * tl.full([], 0x9E3779B1, tl.uint32) + low) ^ high)


@triton.jit
def noise_at(row, i, n, low, high):
    """uint32: the random bits of the elements ``i`` of row ``row`` (int64) of ``n``."""
    word = (row * ((n + 1023) // 1024) + i // 1024) * 512 + i % 512
    word = hash_counter(word.to(tl.uint32), low, high)
    return tl.where((i & 512) == 0, word, (word << 16) | (word >> 16))


@triton.jit
def as_fractions(words):
    """float32 in [0, 1) of uint32 words."""
    return (words >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@triton.jit(do_not_specialize=["low", "high"])
def _random(out, n, low, high, UNIFORM: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    if UNIFORM:
        tl.store(out + i, as_fractions(hash_counter(i.to(tl.uint32), low, high)), mask=i < n)
    else:
        tl.store(out + i, hash_counter(i.to(tl.uint32), low, high).to(tl.int32, bitcast=True), mask=i < n)


@triton.jit(do_not_specialize=["low", "high"])
def _noise(out, n, low, high, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(out + row * n + i, noise_at(row, i, n, low, high).to(tl.int32, bitcast=True), mask=i < n)
