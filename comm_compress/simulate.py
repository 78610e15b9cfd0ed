"""W virtual ranks in one process: the same compressors, the same numbers, no network."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from comm_compress.compressor import Compressor
from comm_compress.encoded import Encoded
from comm_compress.rounds import AllReduce, Exchange, Gather, Reduced, Request, Sum
from comm_compress.state import State


def reduce_scatter(compressor: Compressor, inputs: Sequence[Tensor], states: Sequence[State]) -> list[Reduced]:
    """What each of W ranks gets from one compressed reduce-scatter of ``inputs[r]`` ``[W, n]``."""
    return lockstep([compressor.reduce_scatter(rows, state) for rows, state in zip(inputs, states, strict=True)])


def all_gather(compressor: Compressor, inputs: Sequence[Tensor], states: Sequence[State]) -> list[Tensor]:
    """What each of W ranks gets from one compressed all-gather of ``inputs[r]`` ``[n]``."""
    return lockstep([compressor.all_gather(row, state) for row, state in zip(inputs, states, strict=True)])


def lockstep(ranks: Sequence[Generator[Request, Any, Any]]) -> list[Any]:
    """Drive one generator per rank, answering each round's requests together."""
    answers: Sequence[Any] = [None] * len(ranks)
    while True:
        requests, results = [], []
        for rank, answer in zip(ranks, answers, strict=True):
            try:
                requests.append(rank.send(answer))
            except StopIteration as stop:
                results.append(stop.value)
        if results:
            assert not requests, "ranks must take the same number of rounds"
            return results
        answers = _answer(requests)


def _answer(requests: list[Request]) -> list[Any]:
    first = requests[0]
    assert all(type(r) is type(first) for r in requests), "ranks must make the same request"
    if isinstance(first, AllReduce):
        stacked = torch.stack([r.tensor for r in requests if isinstance(r, AllReduce)])
        return [stacked.amax(0) if first.op == "max" else stacked.sum(0)] * len(requests)
    messages: list[Encoded] = [r.message for r in requests if not isinstance(r, AllReduce)]
    if isinstance(first, Gather):
        everything = torch.cat([m.buffer for m in messages])
        return [m.replaced(everything) for m in messages]
    received = [torch.stack([m.buffer[rank] for m in messages]) for rank in range(len(messages))]
    if isinstance(first, Sum):
        received = [
            torch.sum(r.view(first.dtype), 0, keepdim=True, dtype=first.dtype).view(torch.uint8) for r in received
        ]
    else:
        assert isinstance(first, Exchange)
    return [m.replaced(r) for m, r in zip(messages, received, strict=True)]
