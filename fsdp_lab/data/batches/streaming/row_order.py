"""The order of all rows of a mix, for any ranks: sources chosen by weight, documents packed, rows shuffled."""

from collections.abc import Sequence
from typing import TypedDict

from fsdp_lab.data.batches.streaming.packing import Packer, Row, TokenRange
from fsdp_lab.data.batches.streaming.shuffle import Draws, ShuffleBuffer
from fsdp_lab.data.batches.streaming.shuffled_documents import ShuffledDocuments, ShuffledDocumentsState
from fsdp_lab.data.tokens.token_stream import TokenStream


class RowOrderState(TypedDict):
    """All that decides which rows come next, and the counts so far. Lists have one entry for each source, in order."""

    sources: list[ShuffledDocumentsState]
    dealt: list[int]  # tokens of the documents dealt
    leftover: list[TokenRange]  # of the last documents, not in a row yet
    rows: list[Row]  # packed rows that wait in the buffer
    row_draws: int
    rows_drawn: int
    tokens_drawn: list[int]  # in view 0 of the rows drawn


class RowOrder:
    """An endless order of rows, which follows from the arguments alone.

    The next document always comes from the source that is furthest behind its weight: the one with the fewest dealt
    tokens / weight (of equals the first). So after T tokens a source with weight w has dealt w * T tokens, to within
    its longest document (weights add up to 1). Rows then wait in a buffer of ``shuffle_rows``, so that a long document
    does not fill a batch.
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
        """For each source, how many passes over it have begun after the first one."""
        return [source.passes for source in self._sources]

    def next_row(self) -> Row:
        """The ranges of the next row's tokens, in their order."""
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
        """Continues exactly from ``state``, also when JSON has turned its tuples into lists."""
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
