"""Documents laid end to end and cut into rows; what is left over begins the next row."""

from collections import deque
from typing import NamedTuple


class TokenRange(NamedTuple):
    """Tokens ``start`` to ``stop`` (exclusive) of a source."""

    source: int
    start: int
    stop: int


Row = list[TokenRange]


class Packer:
    """Cuts rows of ``length`` positions with ``n_views`` views of each: ``length + n_views - 1`` consecutive tokens.

    View k of position t is token t + k: view 1 is the target of view 0, and a row holds the target of its last
    position. The next row starts ``length`` tokens later: with more than one view it repeats the previous row's last
    tokens, and every token is in view 0 of exactly one row.
    """

    def __init__(self, length: int, n_views: int = 1) -> None:
        self.length, self.window = length, length + n_views - 1
        self._waiting: deque[TokenRange] = deque()
        self._num_waiting = 0

    @property
    def waiting(self) -> list[TokenRange]:
        """The tokens that were added and have not been in view 0 of a row yet."""
        return list(self._waiting)

    @waiting.setter
    def waiting(self, ranges: list[TokenRange]) -> None:
        self._waiting = deque(ranges)
        self._num_waiting = sum(stop - start for _, start, stop in ranges)

    @property
    def has_row(self) -> bool:
        """Whether the waiting tokens are enough for a row."""
        return self._num_waiting >= self.window

    def add(self, document: TokenRange) -> None:
        """Appends a document to the waiting tokens."""
        self._waiting.append(document)
        self._num_waiting += document.stop - document.start

    def row(self) -> Row:
        """Cuts the next row: the ranges where its ``length + n_views - 1`` tokens lie."""
        assert self.has_row
        row, missing = [], self.window
        for source, start, stop in self._waiting:
            row.append(TokenRange(source, start, min(stop, start + missing)))
            missing -= stop - start
            if missing <= 0:
                break
        self._drop(self.length)
        return row

    def _drop(self, count: int) -> None:
        self._num_waiting -= count
        while count:
            source, start, stop = self._waiting.popleft()
            if stop - start > count:
                self._waiting.appendleft(TokenRange(source, start + count, stop))
                return
            count -= stop - start
