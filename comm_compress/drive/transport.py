"""Moving encoded rows between ranks. The only file that calls torch.distributed's collectives.

Which primitive fills the link (measured: docs/log/learnt-about-machines.md, `experiments.bench.traffic.link`):

- NCCL: one ``all_to_all_single`` of bytes; native reductions.
- gloo: isend/irecv pairs. Its ``all_to_all_single`` uses about half of a full-duplex link once a peer's
  part passes 1 MB, and its ``reduce_scatter`` is an all-reduce that sends twice the necessary bytes, so
  a sum in the encoded domain is also an exchange, followed by a local sum in the code's own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from comm_compress.core.encoded import Encoded
from comm_compress.core.ledger import Collective
from comm_compress.core.rounds import (
    LENGTH_BYTES,
    AllReduce,
    ExchangeParts,
    Gather,
    GatherParts,
    Request,
    Sum,
    messages_by,
    sent_by,
)
from comm_compress.core.tracing import span
from comm_compress.core.workspace import Workspace
from comm_compress.drive._compat import all_gather_single, reduce_scatter_single

Result = TypeVar("Result")
REDUCE_OPS = {"max": dist.ReduceOp.MAX, "sum": dist.ReduceOp.SUM}


Answer = Encoded | Tensor | list[Tensor]
ALIGNMENT = 64  # bytes: where new memory begins


def run(
    rounds: Generator[Request, Any, Result],
    group: dist.ProcessGroup,
    collective: Collective,
    workspace: Workspace | None = None,
) -> Result:
    """Drive a compressor's rounds over a process group; bytes and times go to ``collective``.

    Time before the last request is encoding, time after the last answer is decoding. What is received lies in
    ``workspace`` (fresh memory without one).
    """
    return Running(rounds, group, collective, workspace or Workspace()).result()


class Running(Generic[Result]):
    """A collective under way: its first request's messages are being sent while the caller does something else.

    On gloo messages travel in its own thread. They are matched by the order in which a pair of ranks posts them, so
    all ranks must start and finish their collectives in the same order. Rows that differ in length wait for
    the lengths before they start; with ``lengths_ahead`` only the lengths are under way at first, and the rows follow
    when `send_rows` or the answer is asked for. Later rounds begin when `result` is asked for. On CUDA a collective
    runs to its end in the current stream.
    """

    def __init__(
        self,
        rounds: Generator[Request, Any, Result],
        group: dist.ProcessGroup,
        collective: Collective,
        workspace: Workspace,
        lengths_ahead: bool = False,
    ) -> None:
        self._rounds, self._group, self._collective, self._workspace = rounds, group, collective, workspace
        self._lengths_ahead = lengths_ahead
        self._answer: Callable[[], Answer] | None = None
        self._rows: Callable[[], Callable[[], Answer]] | None = None
        """Sends the rows whose lengths are under way, once these have come; returns what waits for the answer."""
        self._resume(None)

    def result(self) -> Result:
        """Wait for what is on its way, and take the remaining rounds."""
        while self._answer is not None:
            self.advance()
        return self._result

    def advance(self) -> None:
        """Wait for the answer to the round under way, and begin the next one; nothing where all is done."""
        if self._answer is None:
            return
        start = self._collective.now()
        with span("wire"):
            answer = self._answer()
        self._collective.spent("wire", start)
        self._resume(answer)

    def send_rows(self) -> None:
        """Begin to send the rows of which only the lengths are under way, if there are such."""
        if self._rows is None:
            return
        start = self._collective.now()
        with span("wire"):
            self._answer, self._rows = self._rows(), None
        self._collective.spent("wire", start)

    def _resume(self, answer: Answer | None) -> None:
        collective = self._collective
        start = collective.now()
        try:
            with span("encode" if answer is None else "decode"):
                request = self._rounds.send(answer)
        except StopIteration as stop:
            collective.spent("decode", start)
            self._answer, self._result = None, cast(Result, stop.value)
            return
        collective.spent("encode", start)
        start = collective.now()
        with span("wire"):
            rank, world = self._group.rank(), self._group.size()
            collective.charge(sent_by(request, rank, world), messages_by(request, rank, world))
            self._answer = self._post(request)
        collective.spent("wire", start)

    def _post(self, request: Request) -> Callable[[], Answer]:
        """Begin to send and receive. What is returned waits until that is done, and gives the answer."""
        group = self._group
        if isinstance(request, AllReduce):
            reduced = _all_reduce(request, group)
            return lambda: reduced
        if isinstance(request, ExchangeParts):
            return self._post_exchange_of_parts(request.messages)
        message = request.message
        if isinstance(request, GatherParts):
            return self._post_gather_of_parts(message.buffer, request.lengths)
        if message.lengths is not None:
            return self._post_ragged(message, isinstance(request, Gather))
        if isinstance(request, Sum) and (message.buffer.is_cuda or message.buffer.numel() == 0):
            summed = message.replaced(_native_sum(message.buffer, request.dtype, group))
            return lambda: summed
        if isinstance(request, Gather):
            received = self._received(message, request.into)
            pending = _all_gather(message.buffer, received, group)
        else:
            received = self._received(message)
            pending = _exchange(message.buffer, received, group)

        def answer() -> Encoded:
            _wait(pending)
            if isinstance(request, Sum):
                return message.replaced(
                    torch.sum(received.view(request.dtype), 0, keepdim=True, dtype=request.dtype).view(torch.uint8)
                )
            return message.replaced(received)

        return answer

    def _post_ragged(self, message: Encoded, everywhere: bool) -> Callable[[], Answer]:
        """Exchange the rows' lengths, and begin to send and receive rows of just those lengths: at once, or when
        `send_rows` is called."""
        world, device = self._group.size(), message.buffer.device
        parts = [message.row(0 if everywhere else r) for r in range(world)]
        announced = torch.tensor([part.numel() for part in parts], device=device).view(torch.uint8)
        seen = torch.empty_like(announced)
        under_way = _exchange(announced.view(world, LENGTH_BYTES), seen.view(world, LENGTH_BYTES), self._group)

        def send_rows() -> Callable[[], Answer]:
            _wait(under_way)
            lengths = seen.view(torch.int64).tolist()
            rows = self._take((world, max(lengths)), device)
            received = [row[:length] for row, length in zip(rows, lengths, strict=True)]
            pending = _send_parts(parts, received, self._group)

            def answer() -> Encoded:
                _wait(pending)
                return Encoded(rows, None, message.n, lengths=tuple(lengths), scratch=message.scratch)

            return answer

        if not self._lengths_ahead:
            return send_rows()
        self._rows = send_rows

        def both() -> Answer:
            self._rows = None
            return send_rows()()

        return both

    def _post_exchange_of_parts(self, messages: Sequence[Encoded]) -> Callable[[], Answer]:
        """Begin to send message d to rank d, and to receive rows as long as this rank's message to itself."""
        own: Encoded = messages[self._group.rank()]
        received = self._received(own)
        pending = _send_parts([message.buffer[0] for message in messages], list(received), self._group)

        def answer() -> Encoded:
            _wait(pending)
            return own.replaced(received)

        return answer

    def _post_gather_of_parts(self, row: Tensor, lengths: Sequence[int]) -> Callable[[], Answer]:
        """Begin to send ``row`` uint8 ``[1, m]`` to every rank, and to receive ``lengths[r]`` bytes from rank r."""
        starts = [0, *accumulate(-(-length // ALIGNMENT) * ALIGNMENT for length in lengths)]
        memory = self._take((1, starts[-1]), row.device)[0]
        received = [memory[start : start + length] for start, length in zip(starts, lengths, strict=False)]
        pending = _send_parts([row[0]] * len(lengths), received, self._group)

        def answer() -> list[Tensor]:
            _wait(pending)
            return received

        return answer

    def _received(self, message: Encoded, into: Tensor | None = None) -> Tensor:
        """Return memory for W rows like those of ``message``: ``into``, or some of this round's own."""
        shape = (self._group.size(), message.buffer.shape[1])
        if into is None:
            return self._take(shape, message.buffer.device)
        return into.view(torch.uint8).view(shape)

    def _take(self, shape: tuple[int, int], device: torch.device) -> Tensor:
        return self._workspace.take(f"received {self._collective.rounds}", shape, torch.uint8, device)


def _exchange(rows: Tensor, received: Tensor, group: dist.ProcessGroup) -> list[dist.Work]:
    """Send ``rows[d]`` to rank d, and receive row r of ``received`` from rank r. uint8 ``[W, m]``."""
    if rows.is_cuda:
        dist.all_to_all_single(received, rows, group=group)
        return []
    return _send_pairs(list(rows), received, group)


def _all_gather(row: Tensor, received: Tensor, group: dist.ProcessGroup) -> list[dist.Work]:
    """Send ``row`` uint8 ``[1, m]`` to every rank, and receive all ranks' rows in ``received`` ``[W, m]``."""
    if row.is_cuda:
        all_gather_single(received, row, group=group)
        return []
    return _send_pairs([row[0]] * group.size(), received, group)


def _send_parts(parts: list[Tensor], received: list[Tensor], group: dist.ProcessGroup) -> list[dist.Work]:
    """Send ``parts[d]`` to rank d, and receive ``received[r]`` from rank r: uint8 vectors of any lengths."""
    if parts[0].is_cuda:
        dist.all_to_all(received, parts, group=group)
        return []
    return _send_pairs(parts, received, group)


def _send_pairs(
    parts: Sequence[Tensor], received: Sequence[Tensor] | Tensor, group: dist.ProcessGroup
) -> list[dist.Work]:
    """Post every send and receive before any is waited for (full duplex). Nothing is sent for rows without bytes."""
    rank, world = group.rank(), group.size()
    if received[rank].data_ptr() != parts[rank].data_ptr():
        received[rank].copy_(parts[rank])
    peers = [(rank + i) % world for i in range(1, world)]
    pending = [
        dist.irecv(received[peer], group=group, group_src=peer) for peer in reversed(peers) if received[peer].numel()
    ]
    pending += [dist.isend(parts[peer], group=group, group_dst=peer) for peer in peers if parts[peer].numel()]
    return [work for work in pending if work is not None]  # None: this rank does not belong to the group


def _wait(pending: Sequence[dist.Work]) -> None:
    for work in pending:
        work.wait()


def _native_sum(rows: Tensor, dtype: torch.dtype, group: dist.ProcessGroup) -> Tensor:
    """Sum row d of all ranks in ``dtype`` at rank d, by torch's own collective: uint8 ``[1, m]``."""
    if rows.numel() == 0:
        return rows[:1]
    codes = rows.view(dtype)
    total = torch.empty_like(codes[:1])
    reduce_scatter_single(total, codes, group=group)
    return total.view(torch.uint8)


def exact_sum(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sum row d of all ranks' ``rows`` ``[W, n]`` at rank d, by torch's own collective: float32 ``[n]``.

    A yardstick: nobody counts its bytes or its time.
    """
    total = torch.empty(rows.shape[1], dtype=torch.float32, device=rows.device)
    if total.numel():
        reduce_scatter_single(total, rows.float().reshape(-1), group=group)
    return total


def _all_reduce(request: AllReduce, group: dist.ProcessGroup) -> Tensor:
    answer = request.tensor.clone()
    dist.all_reduce(answer, REDUCE_OPS[request.op], group=group)
    return answer
