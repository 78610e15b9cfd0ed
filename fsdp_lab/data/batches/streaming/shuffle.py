"""Random numbers that a count brings back, and a buffer that shuffles a stream with them."""

from collections.abc import Iterable
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")
_BLOCK = 1024
_WORDS_A_COUNT = 4  # 64-bit words that Philox makes of one value of its counter


class Draws:
    """Whole numbers from a counter generator: the n-th follows from ``seed``, ``stream`` and n alone.

    So ``count``, how many were drawn, is all its state. Uses numpy's raw Philox, which it promises to keep for ever.
    """

    def __init__(self, seed: int, stream: int, count: int = 0) -> None:
        self.count = count
        self._key = np.array([seed, stream], dtype=np.uint64)
        self._block, self._values = -1, [0]

    def below(self, limit: int) -> int:
        """The next number, uniform in [0, ``limit``) but for a bias of ``limit`` / 2^64."""
        block, index = divmod(self.count, _BLOCK)
        if block != self._block:
            generator = np.random.Philox(key=self._key, counter=block * (_BLOCK // _WORDS_A_COUNT))
            self._block, self._values = block, generator.random_raw(_BLOCK).tolist()
        self.count += 1
        return self._values[index] % limit


class ShuffleBuffer(Generic[T]):
    """What waits to be dealt in random order; a buffer as long as the stream shuffles it completely."""

    def __init__(self, draws: Draws, items: Iterable[T] = ()) -> None:
        self.draws = draws
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def add(self, item: T) -> None:
        """One more that waits."""
        self.items.append(item)

    def take(self) -> T:
        """One of those that wait, each with the same chance."""
        chosen = self.draws.below(len(self.items))
        self.items[chosen], self.items[-1] = self.items[-1], self.items[chosen]
        return self.items.pop()
