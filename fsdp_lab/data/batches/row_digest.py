"""A digest of the rows (token sequences) that a run trained on, whichever rank trained on which row."""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import TypedDict

from torch import Tensor

_BYTES = 16


class DigestState(TypedDict):
    """The state of a `RowDigest`. ``share``: first row, rows, and all ranks' rows in a batch, as `RowDigest` takes."""

    share: list[int]
    batches: int
    sum: int | None


class RowDigest:
    """Sum modulo 2^128 of the BLAKE2b hashes of (number of the row in the run, its tokens) over this process's rows.

    The sums of all processes add up to the same digest however many processes there are. Another order of rows gives
    another digest.
    """

    def __init__(self, first: int, rows: int, rows_of_all: int, step: int = 1) -> None:
        """This process has ``rows`` of a batch's ``rows_of_all`` rows: every ``step``-th one from ``first`` on."""
        self.batches = 0
        self._step = step
        self._share = [first, rows, rows_of_all]
        self._sum: int | None = 0

    def add(self, tokens: Tensor | Sequence[Tensor]) -> None:
        """Adds one batch of this process: int64 ``[rows, length]`` on the CPU, or ``rows`` rows of any lengths."""
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
        """This process's sum over ``batches`` batches; None unless exactly those were added, from the first on."""
        return self._sum if self.batches == batches else None

    def state_dict(self) -> DigestState:
        """The state as plain values, from which `load_state_dict` continues."""
        return {"share": self._share, "batches": self.batches, "sum": self._sum}

    def load_state_dict(self, state: DigestState) -> None:
        """Continues from ``state``. If a process with other rows left it, the digest of the run stays unknown."""
        is_mine = list(state["share"]) == self._share
        self.batches, self._sum = state["batches"], state["sum"] if is_mine else None


def digest_of_all(sums: Iterable[int | None]) -> str | None:
    """The digest (32 hexadecimal digits) of the run from the sums of all processes; None if one of them is None."""
    known = list(sums)
    total = sum(one for one in known if one is not None) % (1 << 8 * _BYTES)
    return None if None in known else f"{total:0{2 * _BYTES}x}"
