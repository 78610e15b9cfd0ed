"""Two segments of text: in half of the cases the second continues the first, else it is of another document.

Text comes in windows of the token stream, as for other models, so that no position is padding. A window is cut where a
sentence begins within a document; a window without such a place is cut anywhere within a document.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fsdp_lab.data.batches.masked.masking import Draws, Ints
from fsdp_lab.data.tokens.token_stream import TokenStream

_TRIES = 10  # to find another document, as in the authors' program; a text of one document has none
DRAWS = 2 + 2 * _TRIES
"""How many random numbers `Pairs.segments` takes."""


class Pairs:
    """The pairs of segments of one split."""

    def __init__(self, stream: TokenStream, length: int, eot_id: int, ends_sentence: npt.NDArray[np.bool_]) -> None:
        """``length``: tokens of both segments. ``ends_sentence``: for each id, may a sentence begin after it?"""
        self._stream, self._length, self._eot_id, self._ends_sentence = stream, length, eot_id, ends_sentence

    def segments(self, start: int, draws: Draws) -> tuple[Ints, Ints, bool]:
        """Segments A and B of the window that begins at token ``start``; True: B is not A's continuation.

        Both are int64 and have ``length`` tokens together. All choices follow from ``draws`` (`DRAWS` numbers).
        """
        window = self._read(start, self._length)
        cut = self._cut(window, draws[1])
        first, second = window[:cut], window[cut:]
        if draws[0] >= np.uint64(1 << 63):
            return first, second, False
        return first, self._elsewhere(start + cut, len(second), draws[2:]), True

    def _elsewhere(self, place: int, length: int, draws: Draws) -> Ints:
        """``length`` tokens from where another window would be cut, in another document than token ``place``'s."""
        begin = 0
        for where, cut in draws.reshape(-1, 2):
            # a window of which `length` tokens are left wherever it is cut
            last = self._stream.num_tokens - self._length - length
            other = int(where) % (max(last, 0) + 1)
            begin = min(other + self._cut(self._read(other, self._length), cut), self._stream.num_tokens - length)
            if self._document_of(begin) != self._document_of(place):
                break
        return self._read(begin, length)

    def _cut(self, window: Ints, draw: np.uint64) -> int:
        """Where the second segment begins, from 1 to one less than the window has."""
        before, after = window[:-1], window[1:]
        within = (before != self._eot_id) & (after != self._eot_id)
        places: npt.NDArray[Any] = np.flatnonzero(within & self._ends_sentence[before])
        if not len(places):
            places = np.flatnonzero(within)
        if not len(places):  # nothing but ends of documents
            places = np.arange(len(before))
        return 1 + int(places[int(draw) % len(places)])

    def _read(self, start: int, length: int) -> Ints:
        tokens = np.empty(length, dtype=np.int64)
        self._stream.read_into(tokens, start)
        return tokens

    def _document_of(self, place: int) -> int:
        return int(np.searchsorted(self._ends, place))

    @cached_property
    def _ends(self) -> Ints:
        """The places of all <|endoftext|>, 8 bytes a document."""
        return self._stream.places_of_ends()
