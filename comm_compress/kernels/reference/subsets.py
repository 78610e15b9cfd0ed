"""Random subsets without a pass over what they are drawn from, in plain torch operations.

A keyed pseudo-random permutation of 0 .. n - 1; its images of 0 .. k - 1 are the subset. An alternating Feistel
network (Luby and Rackoff 1988) permutes the numbers of ceil(log2 n) bits: each round adds to one half of the bits a
hash of the other half, which can be undone, whatever the hash. Images of n and above are permuted again until they
are below n (cycle walking; Black and Rogaway, CT-RSA 2002): from n = 33 on, less than twice in all on average.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels.reference.random import mix, random_bits

ROUNDS = 8
FEWEST_BITS = 6  # of the numbers permuted: fewer are not mixed well, and few numbers are soon walked through


def random_subset(key: tuple[int, int], n: int, k: int, device: torch.device) -> Tensor:
    """int64 ``[k]``: distinct numbers below ``n``, a function of the key; ascending; ``0 <= k <= n < 2^31``.

    Every set of k is as likely as any other, as far as the rounds mix: over a million keys, how often single numbers
    and pairs are drawn cannot be told from uniform, for the smallest n as for larger ones.
    """
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
