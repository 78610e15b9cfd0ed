"""Random subsets: the definition in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels.elements.random.reference import mix, random_bits

ROUNDS = 8
FEWEST_BITS = 6  # of the numbers permuted: fewer are not mixed well, and few numbers are soon walked through


def random_subset(key: tuple[int, int], n: int, k: int, device: torch.device) -> Tensor:
    keys = random_bits(key, ROUNDS, torch.device("cpu")).tolist()
    numbers = _permuted(torch.arange(k, dtype=torch.int32, device=device), n, keys)
    while bool((beyond := numbers >= n).any()):
        numbers = torch.where(beyond, _permuted(numbers, n, keys), numbers)
    return numbers.long().sort().values  # reading and writing there is then up to twice as fast


def _permuted(numbers: Tensor, n: int, keys: list[int]) -> Tensor:
    """Each half is changed in every other round."""
    bits, low = halves(n)
    right, left = numbers & ((1 << low) - 1), numbers >> low
    for round_, key in enumerate(keys):
        if round_ % 2:
            right = right ^ (mix(left ^ key) & ((1 << low) - 1))
        else:
            left = left ^ (mix(right ^ key) & ((1 << (bits - low)) - 1))
    return left << low | right


def halves(n: int) -> tuple[int, int]:
    """How many bits are permuted for numbers below n, and how many of them are the lower half."""
    bits = max((n - 1).bit_length(), FEWEST_BITS)
    return bits, (bits + 1) // 2
