"""Moving encoded rows between ranks. The only file that calls torch.distributed's collectives.

Which primitive fills the link (measured: docs/transport.md):

- NCCL: one ``all_to_all_single`` of bytes; native reductions.
- gloo: isend/irecv pairs. Its ``all_to_all_single`` uses about half of a full-duplex link once a peer's
  part passes 1 MB, and its ``reduce_scatter`` is an all-reduce that sends twice the necessary bytes, so
  a sum in the encoded domain is also an exchange, followed by a local sum in the code's own dtype.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from comm_compress._compat import all_gather_single, reduce_scatter_single
from comm_compress.encoded import Encoded
from comm_compress.ledger import Collective
from comm_compress.rounds import LENGTH_BYTES, AllReduce, Exchange, Gather, Request, sent_by

Result = TypeVar("Result")
REDUCE_OPS = {"max": dist.ReduceOp.MAX, "sum": dist.ReduceOp.SUM}


def run(rounds: Generator[Request, Any, Result], group: dist.ProcessGroup, collective: Collective) -> Result:
    """Drive a compressor's rounds over a process group; bytes and times go to ``collective``.

    Time before the last request is encoding, time after the last answer is decoding.
    """
    answer: Encoded | Tensor | None = None
    while True:
        start = collective.now()
        try:
            with record_function(f"comm_compress::{'encode' if answer is None else 'decode'}"):
                request = rounds.send(answer)
        except StopIteration as stop:
            collective.spent("decode", start)
            return cast(Result, stop.value)
        collective.spent("encode", start)
        start = collective.now()
        with record_function("comm_compress::wire"):
            answer = _perform(request, group, collective)
        collective.spent("wire", start)


def _perform(request: Request, group: dist.ProcessGroup, collective: Collective) -> Encoded | Tensor:
    collective.charge(sent_by(request, group.rank(), group.size()))
    if isinstance(request, AllReduce):
        return _all_reduce(request, group)
    message = request.message
    if message.lengths is not None:
        return _ragged(request, message, group)
    if isinstance(request, Gather):
        return message.replaced(_all_gather(message.buffer, group))
    if isinstance(request, Exchange):
        return message.replaced(_exchange(message.buffer, group))
    return message.replaced(_sum(message, request.dtype, group))


def _exchange(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """``rows[d]`` to rank d; row r of the answer comes from rank r. uint8 ``[W, m]``."""
    received = torch.empty_like(rows)
    if rows.device.type == "cpu":
        _send_pairs(list(rows), received, group)
    else:
        dist.all_to_all_single(received, rows, group=group)
    return received


def _all_gather(row: Tensor, group: dist.ProcessGroup) -> Tensor:
    """``row`` uint8 ``[1, m]`` to every rank; the answer is ``[W, m]``."""
    received = row.new_empty((group.size(), row.shape[1]))
    if row.device.type == "cpu":
        _send_pairs([row[0]] * group.size(), received, group)
    else:
        all_gather_single(received, row, group=group)
    return received


def _ragged(request: Request, message: Encoded, group: dist.ProcessGroup) -> Encoded:
    """Lengths first, then rows of just those lengths."""
    world, everywhere = group.size(), isinstance(request, Gather)
    parts = [message.row(0 if everywhere else r) for r in range(world)]
    announced = torch.tensor([part.numel() for part in parts], device=message.buffer.device)
    lengths = _exchange(announced.view(torch.uint8).view(world, LENGTH_BYTES), group).view(torch.int64).flatten()
    received = [message.buffer.new_empty(n) for n in lengths.tolist()]
    if message.buffer.device.type == "cpu":
        _send_pairs(parts, received, group)
    else:
        dist.all_to_all(received, parts, group=group)
    return Encoded.ragged(received, message.n)


def _send_pairs(parts: Sequence[Tensor], received: Sequence[Tensor] | Tensor, group: dist.ProcessGroup) -> None:
    """Full-duplex pairs: every send and receive is posted before any is waited for. Nothing is sent for nothing."""
    rank, world = group.rank(), group.size()
    received[rank].copy_(parts[rank])
    peers = [(rank + i) % world for i in range(1, world)]
    pending = [
        dist.irecv(received[peer], group=group, group_src=peer) for peer in reversed(peers) if received[peer].numel()
    ]
    pending += [dist.isend(parts[peer], group=group, group_dst=peer) for peer in peers if parts[peer].numel()]
    for work in pending:
        assert work is not None, "this rank belongs to the group"
        work.wait()


def _sum(message: Encoded, dtype: torch.dtype, group: dist.ProcessGroup) -> Tensor:
    """Row d of all ranks, summed in ``dtype``, as uint8 ``[1, m]`` at rank d."""
    if message.buffer.numel() == 0:
        return message.buffer[:1]
    if message.buffer.device.type == "cpu":
        received = _exchange(message.buffer, group)
        return torch.sum(received.view(dtype), 0, keepdim=True, dtype=dtype).view(torch.uint8)
    codes = message.buffer.view(dtype)
    total = torch.empty_like(codes[:1])
    reduce_scatter_single(total, codes, group=group)
    return total.view(torch.uint8)


def _all_reduce(request: AllReduce, group: dist.ProcessGroup) -> Tensor:
    answer = request.tensor.clone()
    dist.all_reduce(answer, REDUCE_OPS[request.op], group=group)
    return answer
