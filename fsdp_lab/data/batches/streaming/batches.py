"""This rank's batches of a order, read ahead in the background, each with the state of the stream after it."""

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from fsdp_lab.data.batches.streaming.packing import Row
from fsdp_lab.data.batches.streaming.prefetch import Prefetch
from fsdp_lab.data.batches.streaming.row_order import RowOrder, RowOrderState
from fsdp_lab.data.tokens.token_stream import TokenStream


class MixedBatches:
    """Batches of the ranks ``rank`` to ``rank + played`` (exclusive) of ``world_size``, ``batch_size`` rows each.

    A global batch is the next ``batch_size * world_size`` rows of the order; rank r has ``batch_size`` of them, from
    r * batch_size on. So the rows come in the same order for any number of ranks, none left out and none twice.
    """

    def __init__(
        self,
        streams: Sequence[TokenStream],
        weights: Sequence[float],
        *,
        max_length: int,
        batch_size: int,
        rank: int,
        world_size: int,
        seed: int,
        shuffle_documents: int,
        shuffle_rows: int,
        n_views: int = 1,
        played: int = 1,
        prefetch: int = 4,
    ) -> None:
        assert 0 <= rank <= world_size - played < world_size, (rank, world_size, played)
        self.streams, self.weights = streams, weights
        self.max_length, self.n_views = max_length, n_views
        self.batch_size, self.rank, self.world_size, self.played = batch_size, rank, world_size, played
        self.seed, self.shuffle_documents, self.shuffle_rows = seed, shuffle_documents, shuffle_rows
        self.prefetch = prefetch

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in an epoch of the mix, which is as many tokens as all sources hold together."""
        tokens = sum(stream.num_tokens for stream in self.streams)
        return tokens // (self.max_length * self.batch_size * self.world_size)

    def order(self) -> RowOrder:
        """The order of the rows of all ranks, from its beginning."""
        return RowOrder(
            self.streams,
            self.weights,
            self.max_length,
            self.n_views,
            self.seed,
            self.shuffle_documents,
            self.shuffle_rows,
        )

    def stream(self, state: RowOrderState | None = None) -> Iterator[tuple[Tensor, RowOrderState]]:
        """Endless batches from ``state`` (default: the start), each with the state from which the next one follows.

        A batch is int64 ``[played * batch_size, max_length, n_views]``. A stream from a state continues exactly,
        however far the first one had read ahead. Its thread lives until the iterator is closed or dropped. Raises
        ValueError, KeyError or TypeError at once for a ``state`` of another shape.
        """
        order = self.order()
        if state is not None:
            order.load(state)
        return self._batches(order)

    def _batches(self, order: RowOrder) -> Iterator[tuple[Tensor, RowOrderState]]:
        def produce() -> tuple[Tensor, RowOrderState]:
            rows = [order.next_row() for _ in range(self.batch_size * self.world_size)]
            first = self.rank * self.batch_size
            return self._read(rows[first : first + self.played * self.batch_size]), order.state()

        with closing(Prefetch(produce, self.prefetch)) as ahead:
            while True:
                yield ahead.take()

    def _read(self, rows: Sequence[Row]) -> Tensor:
        tokens = np.empty((len(rows), self.max_length + self.n_views - 1), dtype=np.int64)
        for out, row in zip(tokens, rows, strict=True):
            done = 0
            for source, start, stop in row:
                self.streams[source].read_into(out[done : done + stop - start], start)
                done += stop - start
        return torch.from_numpy(tokens).unfold(1, self.n_views, 1)
