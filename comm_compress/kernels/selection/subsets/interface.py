"""Random subsets of the numbers 0 to n - 1, without a pass over all n of them.

A keyed pseudo-random permutation of 0 .. n - 1 is taken; its images of 0 .. k - 1 are the subset. An alternating
Feistel network (Luby and Rackoff, 1988) permutes the numbers of ceil(log2 n) bits: each round adds to one half of the
bits a hash of the other half, which can be undone, whatever the hash. Images of n and above are permuted again until
they are below n (cycle walking; Black and Rogaway, CT-RSA 2002): from n = 33 on, less than twice in all on average.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class SubsetKernels(Protocol):
    """Draws a subset that every rank with the same key draws alike."""

    def random_subset(self, key: tuple[int, int], n: int, k: int, device: torch.device) -> Tensor:
        """The k numbers below ``n`` that belong to ``key``: distinct, ascending, int64 ``[k]``; ``0 <= k <= n < 2^31``.

        Every set of k is as likely as any other, as far as the rounds mix: over a million keys, how often single
        numbers and pairs are drawn cannot be told from uniform, for the smallest n as for larger ones.
        """
        ...
