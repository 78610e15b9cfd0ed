"""Parameters as changes since the last gather: replicas that all ranks keep and advance alike."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Compressor
from comm_compress.core.encoded import ByteCount, Encoded, RaggedRow
from comm_compress.core.rounds import AllGatherRounds, Gather, ReduceScatterRounds
from comm_compress.core.state import State
from comm_compress.core.traits import Traits

WHOLE, CHANGE = 0, 1  # a row's first byte
FLAG_BYTES = 1


class Change(NamedTuple):
    """The bytes of a change, and, where it is quicker than to read them, what makes the change to this rank's replica.

    ``make`` is given the replica, which it changes in place, to the same bits as the bytes do.
    """

    row: RaggedRow
    make: Callable[[Tensor], object] | None = None


class Delta(Compressor):
    """Sends what changed since the last gather; every rank adds it to its replica of all ranks' rows.

    The replica is a second copy of the unit's whole unsharded parameters, in the dtype they are gathered in, on
    every rank (it gives back what ZeRO-3 saves on parameters), and part of the checkpointed state. All ranks
    hold the same one, since they apply the same bytes. The first gather sends whole rows, exactly; so does
    one whose change is not finite. A rank whose row is what it was, bit for bit, sends nothing: the second gather
    of a step costs 8 bytes a peer and brings the same parameters. Rows are ragged: nothing; or a flag byte,
    and the row's own bytes or the change.

    The gathered rows are the replica itself, which the next gather advances in place (fresh memory would take a CPU
    longer than the arithmetic): read them before it, and do not write to them.
    """

    traits = Traits(for_gradients=False, for_parameters=True)

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """Send the change of this rank's row, and advance the replicas of all ranks' rows."""
        source = self._source(row, state)
        shape, replicas = (state.world, row.numel()), state.get("replicas")
        if replicas is not None and (replicas.shape != shape or replicas.dtype != source.dtype):
            replicas = None  # on all ranks alike: another world size, or another precision
        message, make = self._message(row, source, replicas, state)
        received = yield Gather(Encoded.ragged([message], row.numel(), state.scratch))
        followed = torch.empty(shape, dtype=source.dtype, device=row.device) if replicas is None else replicas
        if replicas is None or any(received.lengths):
            if replicas is not None:
                followed = state.changing("replicas", replicas)
            for r, replica in enumerate(followed):
                if r == state.rank and make is not None:
                    make(replica)
                else:
                    self._follow(replica, received.row(r), replicas is not None, row.dtype, r, state)
        state.put("replicas", followed)
        return followed

    def _message(self, row: Tensor, source: Tensor, replicas: Tensor | None, state: State) -> Change:
        if replicas is not None:
            if self._unchanged(source, replicas[state.rank], state):
                return Change(RaggedRow([_octets(b"", row.device)], ByteCount()))
            if (change := self._change(source, self._expected(replicas, state.rank, state), state)) is not None:
                return Change(_flagged(CHANGE, change.row), change.make)
        self._sent_whole(source, state)
        data = row.contiguous().view(torch.uint8)
        return Change(_flagged(WHOLE, RaggedRow([data], ByteCount(values=data.numel()))))

    def _follow(
        self, replica: Tensor, message: Tensor, known: bool, dtype: torch.dtype, rank: int, state: State
    ) -> None:
        """Bring a rank's replica up to its message; unless it is ``known``, it is no more than memory."""
        if _is_whole(message, FLAG_BYTES + replica.numel() * dtype.itemsize):
            replica.copy_(message[FLAG_BYTES:].clone().view(dtype))  # the clone is aligned
        elif not known:
            raise ValueError(
                f"{self.name}: another rank sent a change of parameters that this rank has not seen: load the "
                "compressor's state on all ranks or on none"
            )
        elif message.numel():
            self._advance(replica, message[FLAG_BYTES:], rank, state)

    def _expected(self, replicas: Tensor, rank: int, state: State) -> Tensor:
        """What a rank's row is thought to be before its message says how it differs."""
        return replicas[rank]

    def _source(self, row: Tensor, state: State) -> Tensor:
        """What replicas follow: ``row``, or what it was rounded from."""
        return row

    @abstractmethod
    def _unchanged(self, row: Tensor, replica: Tensor, state: State) -> bool:
        """Is ``row`` bit for bit what this rank last sent?"""

    @abstractmethod
    def _change(self, row: Tensor, expected: Tensor, state: State) -> Change | None:
        """The bytes that bring ``expected`` to ``row``; None: send the row."""

    @abstractmethod
    def _advance(self, replica: Tensor, data: Tensor, rank: int, state: State) -> None:
        """Bring a rank's replica, in place, from what was expected to its new row, by the bytes of a change.

        These begin at any address.
        """

    def _sent_whole(self, row: Tensor, state: State) -> None:
        """Take notice that the whole row was sent, as it is."""

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Refuse: gradients change much from step to step."""
        raise ValueError(f"{self.name}: not for reduce-scatter")

    def contribution(self, sent: Any) -> Tensor:
        """Raise ValueError, as `reduce_scatter` does: `delta` carries parameters only."""
        raise ValueError(f"{self.name}: not for reduce-scatter")


class LossyDelta(Delta):
    """Sends the change to within an error, which stays in the difference to the replica and is sent later.

    Replicas follow the float32 parameters, also where the row is these rounded to bf16 (`State.master`).
    """

    traits = replace(Delta.traits, no_feedback="the difference to the replica feeds the error back already")

    def _source(self, row: Tensor, state: State) -> Tensor:
        return row if state.master is None else state.master()

    def _unchanged(self, row: Tensor, replica: Tensor, state: State) -> bool:
        last = state.get("last")
        return last is not None and same_bits(row, last)

    def _finite_difference(self, row: Tensor, expected: Tensor, state: State) -> Tensor | None:
        """Return how ``row`` differs from what is expected, float32 ``[n]``; None where that is not finite."""
        difference = self._scratch(row, state)
        finite = not row.numel() or bool(kernels.finite(row).difference(row, expected, difference))
        return difference if finite else None

    def _scratch(self, row: Tensor, state: State) -> Tensor:
        """Memory for one difference at a time, float32 ``[n]``."""
        return state.scratch("difference", tuple(row.shape), torch.float32, row.device)

    def _sent_whole(self, row: Tensor, state: State) -> None:
        self._keep(row, state)

    def _keep(self, row: Tensor, state: State) -> None:
        last = state.get("last")
        if last is None or last.shape != row.shape or last.dtype != row.dtype:
            last = torch.empty_like(row)
        else:
            last = state.changing("last", last)
        state.put("last", last.copy_(row))


def _is_whole(message: Tensor, length: int) -> bool:
    """Is this a whole row, which takes ``length`` bytes? A GPU is only asked where a change takes as many."""
    return message.numel() == length and bool(message[0] == WHOLE)


def _flagged(flag: int, row: RaggedRow) -> RaggedRow:
    assert row.byte_count is not None
    parts = [_octets(bytes([flag]), row.parts[0].device), *row.parts]
    return RaggedRow(parts, row.byte_count + ByteCount(metadata=FLAG_BYTES))


@functools.lru_cache(maxsize=64)
def _octets(data: bytes, device: torch.device) -> Tensor:
    """These few bytes as a tensor, to be read only."""
    return torch.tensor(list(data), dtype=torch.uint8, device=device)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Are two tensors the same, bit for bit (also where both are NaN)?"""
    return a.shape == b.shape and a.dtype == b.dtype and kernels.changes(a).same_bits(a, b)
