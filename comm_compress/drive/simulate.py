"""W virtual ranks in one process: the same compressors, the same numbers, no network."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress.core.compressor import Compressor
from comm_compress.core.encoded import ByteCount, Encoded, RaggedRow
from comm_compress.core.rounds import (
    AllReduce,
    Exchange,
    ExchangeParts,
    Gather,
    GatherParts,
    Reduced,
    Request,
    Sum,
    sent_by,
)
from comm_compress.core.segments import Segment
from comm_compress.core.state import State


class Outcome(NamedTuple):
    """What each rank got from one collective, the bytes each would have sent to the others, and in how many rounds."""

    results: list[Any]
    sent: list[ByteCount]
    rounds: int


def states(world: int, unit: str = "", seed: int = 0, segments: tuple[Segment, ...] = ()) -> list[State]:
    """Return a fresh state for each rank, its first collective begun."""
    fresh = [State(unit, rank, world, seed, segments) for rank in range(world)]
    for state in fresh:
        state.begin()
    return fresh


def reduce_scatter(compressor: Compressor, inputs: Sequence[Tensor], states: Sequence[State]) -> list[Reduced]:
    """Return what each of W ranks gets from one compressed reduce-scatter of ``inputs[r]`` ``[W, n]``."""
    return lockstep([compressor.reduce_scatter(x, s) for x, s in zip(inputs, states, strict=True)]).results


def all_gather(compressor: Compressor, inputs: Sequence[Tensor], states: Sequence[State]) -> list[Tensor]:
    """Return what each of W ranks gets from one compressed all-gather of ``inputs[r]`` ``[n]``."""
    return lockstep([compressor.all_gather(x, s) for x, s in zip(inputs, states, strict=True)]).results


def lockstep(ranks: Sequence[Generator[Request, Any, Any]]) -> Outcome:
    """Drive one generator per rank, answering each round's requests together."""
    world = len(ranks)
    answers: Sequence[Any] = [None] * world
    sent = [ByteCount()] * world
    for rounds in itertools.count():
        requests, results = [], []
        for rank, answer in zip(ranks, answers, strict=True):
            try:
                requests.append(rank.send(answer))
            except StopIteration as stop:
                results.append(stop.value)
        if results:
            assert not requests, "ranks must take the same number of rounds"
            return Outcome(results, sent, rounds)
        sent = [
            total + sent_by(request, r, world) for r, (total, request) in enumerate(zip(sent, requests, strict=True))
        ]
        answers = [_answer(requests, rank) for rank in range(world)]
    raise AssertionError("generators end")


def echo(request: Request, rank: int, world: int) -> Any:
    """Return the answer that ``rank`` gets when every rank makes the same request: one rank alone, for measurements."""
    return _answer([request] * world, rank)


def _answer(requests: list[Request], rank: int) -> Any:
    first = requests[0]
    assert all(type(r) is type(first) for r in requests), "ranks must make the same request"
    if isinstance(first, AllReduce):
        stacked = torch.stack([r.tensor for r in requests if isinstance(r, AllReduce)])
        return stacked.amax(0) if first.op == "max" else stacked.sum(0)
    if isinstance(first, ExchangeParts):
        exchanges = [r for r in requests if isinstance(r, ExchangeParts)]
        return _received(exchanges[rank].messages[rank], [sender.messages[rank].row(0) for sender in exchanges])
    if isinstance(first, GatherParts):
        rows = [r.message.row(0).clone() for r in requests if isinstance(r, GatherParts)]
        assert tuple(row.numel() for row in rows) == first.lengths, "every rank knows all lengths"
        return rows
    messages: list[Encoded] = [r.message for r in requests if isinstance(r, Exchange | Gather | Sum)]
    row = 0 if isinstance(first, Gather) else rank
    received = _received(messages[rank], [sender.row(row) for sender in messages])
    return received.replaced(_summed(received.buffer, first.dtype)) if isinstance(first, Sum) else received


def _summed(rows: Tensor, dtype: torch.dtype) -> Tensor:
    if rows.numel() == 0:  # a view in another dtype needs something to view
        return rows[:1]
    return torch.sum(rows.view(dtype), 0, keepdim=True, dtype=dtype).view(torch.uint8)


def _received(mine: Encoded, rows: list[Tensor]) -> Encoded:
    if mine.lengths is not None:
        return dataclasses.replace(Encoded.ragged([RaggedRow([row]) for row in rows], mine.n), scratch=mine.scratch)
    return mine.replaced(torch.stack(rows))
