"""Random numbers whose whole state is a count, and a buffer that shuffles a stream with them."""

from collections.abc import Iterable
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")
_BLOCK = 1024
_NUMBERS_A_COUNT = 4  # 64-bit numbers that Philox makes of one value of its counter


class Draws:
    """Whole numbers from a counter generator: the n-th follows from ``seed``, ``stream`` and n alone.

    So its whole state is ``count``, how many were drawn. numpy promises not to change the raw Philox numbers used here.
    """

    def __init__(self, seed: int, stream: int, count: int = 0) -> None:
        self.count = count
        self._key = np.array([seed, stream], dtype=np.uint64)
        self._block, self._values = -1, [0]

    def below(self, limit: int) -> int:
        """The next number, uniform in [0, ``limit``) but for a bias of ``limit`` / 2^64."""
        block, index = divmod(self.count, _BLOCK)
        if block != self._block:
            generator = np.random.Philox(key=self._key, counter=block * (_BLOCK // _NUMBERS_A_COUNT))
            self._block, self._values = block, generator.random_raw(_BLOCK).tolist()
        self.count += 1
        return self._values[index] % limit


class ShuffleBuffer(Generic[T]):
    """Items that wait to be taken in random order. A buffer as long as the stream shuffles it completely."""

    def __init__(self, draws: Draws, items: Iterable[T] = ()) -> None:
        self.draws = draws
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def add(self, item: T) -> None:
        """Puts one more item into the buffer."""
        self.items.append(item)

    def take(self) -> T:
        """Takes one item out of the buffer, each with the same probability."""
        chosen = self.draws.below(len(self.items))
        self.items[chosen], self.items[-1] = self.items[-1], self.items[chosen]
        return self.items.pop()
