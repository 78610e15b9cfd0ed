"""Parameters as changes since the last gather: replicas that all ranks keep and advance alike."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from comm_compress.compressor import Compressor
from comm_compress.encoded import ByteCount, Encoded
from comm_compress.rounds import AllGatherRounds, Gather, ReduceScatterRounds
from comm_compress.state import State

WHOLE, CHANGE = 0, 1  # a row's first byte
FLAG_BYTES = 1


class Delta(Compressor):
    """Sends what changed since the last gather; every rank adds it to its replica of all ranks' rows.

    The replica is a second copy of the unit's whole unsharded parameters, in the dtype they are gathered in, on
    every rank (it gives back what ZeRO-3 saves on parameters), and part of the checkpointed state. All ranks
    hold the same one, since they apply the same bytes. The first gather sends whole rows, exactly; so does
    one whose change is not finite. A rank whose row is what it was, bit for bit, sends nothing: the second gather
    of a step costs 8 bytes a peer and brings the same parameters. Rows are ragged: nothing; or a flag byte,
    and the row's own bytes or the change.

    The gathered rows are the replica itself: read them, do not write to them.
    """

    for_gradients = False
    for_parameters = True

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """Send the change of this rank's row, apply those of all."""
        source = self._source(row, state)
        replicas = state.get("replicas")
        if replicas is not None and (replicas.shape != (state.world, row.numel()) or replicas.dtype != source.dtype):
            replicas = None  # on all ranks alike: another world size, or another precision
        message, count = self._message(row, source, replicas, state)
        received = yield Gather(Encoded.ragged([message], row.numel(), [count]))
        if replicas is not None and not any(received.lengths):
            return replicas
        gathered = torch.empty(state.world, row.numel(), dtype=source.dtype, device=row.device)
        for r in range(received.num_rows):
            gathered[r] = self._advanced(received.row(r), replicas, r, row.dtype, state)
        self._learn(replicas, gathered, state)
        state.put("replicas", gathered)
        return gathered

    def _message(self, row: Tensor, source: Tensor, replicas: Tensor | None, state: State) -> tuple[Tensor, ByteCount]:
        if replicas is not None:
            if self._unchanged(source, replicas[state.rank], state):
                return row.new_empty(0, dtype=torch.uint8), ByteCount()
            if (change := self._change(source, self._expected(replicas, state.rank, state), state)) is not None:
                data, count = change
                return _flagged(CHANGE, data), count + ByteCount(metadata=FLAG_BYTES)
        self._sent_whole(source, state)
        data = row.contiguous().view(torch.uint8)
        return _flagged(WHOLE, data), ByteCount(values=data.numel(), metadata=FLAG_BYTES)

    def _advanced(
        self, message: Tensor, replicas: Tensor | None, rank: int, dtype: torch.dtype, state: State
    ) -> Tensor:
        """A rank's row after its message."""
        if message.numel() and message[0] == WHOLE:
            return message[FLAG_BYTES:].clone().view(dtype)  # the clone is aligned
        if replicas is None:
            raise ValueError(
                f"{self.name}: another rank sent a change of parameters that this rank has not seen: load the "
                "compressor's state on all ranks or on none"
            )
        if not message.numel():
            return replicas[rank]
        return self._apply(self._expected(replicas, rank, state), message[FLAG_BYTES:].clone())

    def _expected(self, replicas: Tensor, rank: int, state: State) -> Tensor:
        """What a rank's row is thought to be before its message says how it differs."""
        return replicas[rank]

    def _learn(self, replicas: Tensor | None, gathered: Tensor, state: State) -> None:
        """All rows have moved on from ``replicas`` (None: they are the first ones)."""

    def _source(self, row: Tensor, state: State) -> Tensor:
        """What replicas follow: ``row``, or what it was rounded from."""
        return row

    @abstractmethod
    def _unchanged(self, row: Tensor, replica: Tensor, state: State) -> bool:
        """Is ``row`` bit for bit what this rank last sent?"""

    @abstractmethod
    def _change(self, row: Tensor, expected: Tensor, state: State) -> tuple[Tensor, ByteCount] | None:
        """The bytes that bring ``expected`` to ``row``; None: send the row."""

    @abstractmethod
    def _apply(self, expected: Tensor, data: Tensor) -> Tensor:
        """A new row from what was expected and the bytes of a change."""

    def _sent_whole(self, row: Tensor, state: State) -> None:
        """The row is on its way as it is."""

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Refused: gradients do not change little from step to step."""
        raise ValueError(f"{self.name}: not for reduce-scatter")

    def contribution(self, sent: Any) -> Tensor:
        """Refused, as `reduce_scatter` is."""
        raise ValueError(f"{self.name}: not for reduce-scatter")


class LossyDelta(Delta):
    """Sends the change to within an error, which stays in the difference to the replica and is sent later.

    Replicas follow the float32 parameters, also where the row is these rounded to bf16 (`State.master`).
    """

    no_feedback = "the difference to the replica feeds the error back already"

    @abstractmethod
    def _encoded(self, difference: Tensor, row: Tensor, state: State) -> tuple[Tensor, ByteCount]:
        """The bytes for ``difference`` (float32 ``[n]``, finite): from what is expected to ``row``."""

    def _source(self, row: Tensor, state: State) -> Tensor:
        return row if state.master is None else state.master()

    def _unchanged(self, row: Tensor, replica: Tensor, state: State) -> bool:
        last = state.get("last")
        return last is not None and same_bits(row, last)

    def _change(self, row: Tensor, expected: Tensor, state: State) -> tuple[Tensor, ByteCount] | None:
        difference = row.float() - expected
        if not bool(torch.isfinite(difference).all()):
            return None
        state.put("last", row.clone())
        return self._encoded(difference, row, state)

    def _sent_whole(self, row: Tensor, state: State) -> None:
        state.put("last", row.clone())


def _flagged(flag: int, data: Tensor) -> Tensor:
    return torch.cat([data.new_full((FLAG_BYTES,), flag), data])


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Are two tensors the same, bit for bit (also where both are NaN)?"""
    words = torch.int32 if a.itemsize == 4 else torch.int16
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(words), b.view(words))
