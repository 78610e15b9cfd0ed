"""The documents of one source, shuffled, pass after pass."""

from collections import deque
from typing import NamedTuple, TypedDict

from fsdp_lab.data.batches.streaming.shuffle import Draws, ShuffleBuffer
from fsdp_lab.data.tokens.token_stream import TokenStream


class DocumentRange(NamedTuple):
    """One document: the tokens ``start`` to ``stop`` (exclusive) of a stream."""

    start: int
    stop: int


class ShuffledDocumentsState(TypedDict):
    """``position``: the token that the next unread document starts with; ``passes``: passes begun before this one."""

    position: int
    passes: int
    buffer: list[DocumentRange]
    draws: int


class ShuffledDocuments:
    """Deals the documents of ``stream`` endlessly: each document once in each pass.

    Documents are read in the order of the file into a buffer of ``shuffle`` documents, from which one is drawn at
    random. A pass ends when the buffer is empty, so that no document is dealt twice before all were dealt once.
    """

    def __init__(self, stream: TokenStream, shuffle: int, seed: int, number: int) -> None:
        assert stream.num_tokens > 0
        assert shuffle > 0
        self._stream, self._shuffle = stream, shuffle
        self._buffer: ShuffleBuffer[DocumentRange] = ShuffleBuffer(Draws(seed, number))
        self._ends: deque[int] = deque()  # of documents after the position that are known already
        self._position = self._passes = 0

    @property
    def passes(self) -> int:
        """How many passes had begun before the pass of the last document dealt."""
        return self._passes

    def next(self) -> DocumentRange:
        """Deals the next document, and begins the next pass where this one has ended."""
        self._fill()
        if not self._buffer.items:
            self._position, self._passes = 0, self._passes + 1
            self._fill()
        return self._buffer.take()

    def state(self) -> ShuffledDocumentsState:
        """Everything that decides which documents come next."""
        return {
            "position": self._position,
            "passes": self._passes,
            "buffer": self._buffer.items.copy(),
            "draws": self._buffer.draws.count,
        }

    def load(self, state: ShuffledDocumentsState) -> None:
        """Continues exactly from ``state``, also when JSON has turned its tuples into lists."""
        self._position, self._passes = state["position"], state["passes"]
        self._buffer.items = [DocumentRange(*document) for document in state["buffer"]]
        self._buffer.draws.count = state["draws"]
        self._ends.clear()

    def _fill(self) -> None:
        while len(self._buffer) < self._shuffle and self._position < self._stream.num_tokens:
            if not self._ends:
                self._ends.extend(self._stream.document_ends(self._position))
            stop = self._ends.popleft()
            self._buffer.add(DocumentRange(self._position, stop))
            self._position = stop
