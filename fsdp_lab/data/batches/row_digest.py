"""A digest of the rows that a run trained on, which does not depend on how ranks shared them."""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import TypedDict

from torch import Tensor

_BYTES = 16


class DigestState(TypedDict):
    """``share``: first row, rows and all ranks' rows of a batch, which must be the same to go on."""

    share: list[int]
    batches: int
    sum: int | None


class RowDigest:
    """Sum modulo 2^128 of the BLAKE2b hashes of (number of the row in the run, its tokens) over this process's rows.

    Sums of all processes add up to the same digest however many they are; another order gives another one.
    """

    def __init__(self, first: int, rows: int, rows_of_all: int, step: int = 1) -> None:
        """Of each ``rows_of_all`` rows of all processes, this one has ``rows`` from ``first`` on, every ``step``-th."""
        self.batches = 0
        self._step = step
        self._share = [first, rows, rows_of_all]
        self._sum: int | None = 0

    def add(self, tokens: Tensor | Sequence[Tensor]) -> None:
        """One more batch of this process, int64 ``[rows, length]`` on the CPU, or rows of any length."""
        first, rows, rows_of_all = self._share
        assert len(tokens) == rows, (len(tokens), rows)
        if self._sum is not None:
            numbers = itertools.count(self.batches * rows_of_all + first, self._step)
            for number, row in zip(numbers, tokens, strict=False):
                salt, data = number.to_bytes(_BYTES, "little"), row.contiguous().numpy()
                self._sum += int.from_bytes(hashlib.blake2b(data, digest_size=_BYTES, salt=salt).digest(), "little")
            self._sum %= 1 << 8 * _BYTES
        self.batches += 1

    def part(self, batches: int) -> int | None:
        """The sum over ``batches`` batches; None unless so many were seen, and from the first on."""
        return self._sum if self.batches == batches else None

    def state_dict(self) -> DigestState:
        """What `load_state_dict` takes."""
        return {"share": self._share, "batches": self.batches, "sum": self._sum}

    def load_state_dict(self, state: DigestState) -> None:
        """Go on from ``state``; where another process left it, the digest of the whole run cannot be known."""
        is_mine = list(state["share"]) == self._share
        self.batches, self._sum = state["batches"], state["sum"] if is_mine else None


def digest_of_all(parts: Iterable[int | None]) -> str | None:
    """The digest (32 hexadecimal digits) that the parts of all processes make; None if one does not know its own."""
    known = list(parts)
    total = sum(part for part in known if part is not None) % (1 << 8 * _BYTES)
    return None if None in known else f"{total:0{2 * _BYTES}x}"
