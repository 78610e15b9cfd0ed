"""Which tokens make the next row: sources by weight, documents packed, rows shuffled. Knows nothing of ranks."""

from collections.abc import Sequence
from typing import TypedDict

from fsdp_lab.data.batches.streaming.packing import Packer, Row, TokenRange
from fsdp_lab.data.batches.streaming.shuffle import Draws, ShuffleBuffer
from fsdp_lab.data.batches.streaming.shuffled_documents import ShuffledDocuments, ShuffledDocumentsState
from fsdp_lab.data.tokens.token_stream import TokenStream


class RowOrderState(TypedDict):
    """All that decides which rows come next, and the counts up to here. A list has an entry a source, in order."""

    sources: list[ShuffledDocumentsState]
    dealt: list[int]  # tokens of the documents dealt
    leftover: list[TokenRange]  # of the last row packed
    rows: list[Row]  # packed, and waiting in the buffer
    row_draws: int
    rows_drawn: int
    tokens_drawn: list[int]  # in view 0 of the rows drawn


class RowOrder:
    """An endless order of rows, which follows from the arguments alone.

    The next document is always of the source that is furthest behind its share: whose dealt tokens / weight are the
    fewest (of equals the first). So after T tokens a source with share w has had w * T, to within its longest document.
    Rows then wait in a buffer of ``shuffle_rows``, so that a long document does not fill a batch.
    """

    def __init__(
        self,
        streams: Sequence[TokenStream],
        weights: Sequence[float],
        length: int,
        n_views: int,
        seed: int,
        shuffle_documents: int,
        shuffle_rows: int,
    ) -> None:
        assert len(streams) == len(weights) > 0
        assert min(weights) > 0
        self.weights = weights
        self.rows_drawn = 0
        self.tokens_drawn = [0] * len(streams)
        self._sources = [
            ShuffledDocuments(s, shuffle_documents, seed, number) for number, s in enumerate(streams, start=1)
        ]
        self._dealt = [0] * len(streams)
        self._packer = Packer(length, n_views)
        self._rows: ShuffleBuffer[Row] = ShuffleBuffer(Draws(seed, 0))
        self._shuffle_rows = shuffle_rows

    @property
    def passes(self) -> list[int]:
        """By source, how many passes over it are begun and not the first."""
        return [source.passes for source in self._sources]

    def next_row(self) -> Row:
        """The spans of the next row, in the order of its tokens."""
        while len(self._rows) < self._shuffle_rows:
            self._rows.add(self._pack())
        row = self._rows.take()
        self._count(row)
        return row

    def state(self) -> RowOrderState:
        """The state after the rows drawn; later draws do not change it."""
        return {
            "sources": [source.state() for source in self._sources],
            "dealt": self._dealt.copy(),
            "leftover": self._packer.waiting,
            "rows": self._rows.items.copy(),
            "row_draws": self._rows.draws.count,
            "rows_drawn": self.rows_drawn,
            "tokens_drawn": self.tokens_drawn.copy(),
        }

    def load(self, state: RowOrderState) -> None:
        """Go on from ``state`` exactly, also from what JSON made of it."""
        for source, of_source in zip(self._sources, state["sources"], strict=True):
            source.load(of_source)
        self._dealt = list(state["dealt"])
        self._packer.waiting = [TokenRange(*span) for span in state["leftover"]]
        self._rows.items = [[TokenRange(*span) for span in row] for row in state["rows"]]
        self._rows.draws.count = state["row_draws"]
        self.rows_drawn, self.tokens_drawn = state["rows_drawn"], list(state["tokens_drawn"])

    def _pack(self) -> Row:
        while not self._packer.has_row:
            behind = min(range(len(self._dealt)), key=lambda i: self._dealt[i] / self.weights[i])
            start, stop = self._sources[behind].next()
            self._dealt[behind] += stop - start
            self._packer.add(TokenRange(behind, start, stop))
        return self._packer.row()

    def _count(self, row: Row) -> None:
        self.rows_drawn += 1
        left = self._packer.length
        for source, start, stop in row:
            self.tokens_drawn[source] += min(stop - start, left)
            left = max(0, left - (stop - start))
