"""Random numbers as a function of a key and a counter: any element can be computed alone, on any device."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class RandomKernels(Protocol):
    """Draws random numbers that depend on a 64-bit key and on the element's place, and on nothing else."""

    def random_bits(self, key: tuple[int, int], n: int, device: torch.device) -> Tensor:
        """32 random bits, int32 ``[n]``, for each of the counters 0 to n - 1 under a ``key`` of two 32-bit words.

        A counter passes two rounds of a 32-bit mixing function (its constants were found by the hash prospector project
        and are in the public domain), with half of the key added before each.
        """
        ...

    def noise_bits(self, key: tuple[int, int], num_rows: int, n: int, device: torch.device) -> Tensor:
        """32 random bits, int32 ``[num_rows, n]``, for each element of rows, at half the price of `random_bits`.

        Rows are cut into tiles of 1024 elements. Elements i and i + 512 of a tile share a word of `random_bits`, which
        the second takes rotated by 16 places. Each is uniform by itself; the upper halves of the two, and so the two as
        fractions of 2^32, are independent but for 2^-16.
        """
        ...

    def uniform(self, key: tuple[int, int], n: int, device: torch.device) -> Tensor:
        """Numbers from 0 to below 1, float32 ``[n]``: the upper 24 of `random_bits`, as multiples of 2^-24."""
        ...
