"""What a compressor may ask of the network.

A compressed collective is a generator: it yields requests and is resumed with their answers, and it
returns the result. So a method knows no process group, may take as many rounds as its paper needs
(one exchange; a scale agreed first; a sketch, then exact values), and the same code runs over real
ranks (`transport`) and over virtual ones (`simulate`). Every byte passes through whoever drives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

from comm_compress.core.encoded import ByteCount, Encoded, Kind
from comm_compress.core.segments import Ranges


@dataclass(frozen=True)
class Exchange:
    """Row d goes to rank d. Answer: an `Encoded` of W rows, row r from rank r.

    Ragged rows are preceded by their lengths (8 bytes each, counted).
    """

    message: Encoded


@dataclass(frozen=True)
class Gather:
    """The message's single row goes to every rank. Answer: an `Encoded` of W rows, row r from rank r.

    ``into``: contiguous memory of just their size that the rows may be received in, to save a copy.
    """

    message: Encoded
    into: Tensor | None = None


@dataclass(frozen=True)
class Sum:
    """Reduce-scatter in the encoded domain: row d of all ranks is summed, in ``dtype``, at rank d.

    Answer: an `Encoded` of one row. The caller must know that the sum cannot overflow ``dtype``.
    """

    message: Encoded
    dtype: Any


@dataclass(frozen=True)
class AllReduce:
    """Answer: the elementwise ``op`` of ``tensor`` over all ranks (same shape and dtype). Charged to ``kind``."""

    tensor: Tensor
    op: Literal["max", "sum"]
    kind: Kind = "metadata"


@dataclass(frozen=True)
class ExchangeParts:
    """Message d, a single row, goes to rank d. Messages differ in length, and every rank knows all lengths.

    Answer: an `Encoded` of W rows like this rank's message to itself, row r from rank r.
    """

    messages: tuple[Encoded, ...]


@dataclass(frozen=True)
class GatherParts:
    """The message's single row goes to every rank; rank r's has ``lengths[r]`` bytes, which every rank knows.

    Answer: a list of W uint8 vectors, each aligned like new memory, number r from rank r.
    """

    message: Encoded
    lengths: tuple[int, ...]


Request = Exchange | Gather | Sum | AllReduce | ExchangeParts | GatherParts


LENGTH_BYTES = 8  # an int64 in front of every ragged row


def sent_by(request: Request, rank: int, world: int) -> ByteCount:
    """Return what ``rank`` puts on the wire for one request: payload to other ranks, by kind."""
    peers = [r for r in range(world) if r != rank]
    if isinstance(request, AllReduce):  # a ring: reduce-scatter, then all-gather, of W chunks
        return ByteCount(**{request.kind: 2 * len(peers) * math.ceil(request.tensor.nbytes / world)})
    if isinstance(request, ExchangeParts):
        return sum((request.messages[peer].byte_count(0) for peer in peers), ByteCount())
    message = request.message
    if message.layout is not None:
        return message.layout.byte_count.times(len(peers))
    rows = peers if isinstance(request, Exchange | Sum) else [0] * len(peers)
    lengths = ByteCount(metadata=LENGTH_BYTES * len(peers))
    return sum((message.byte_count(row) for row in rows), lengths)


def messages_by(request: Request, rank: int, world: int) -> float:
    """Return how many messages to other ranks carry that, where messages are pairs of send and receive (gloo)."""
    if isinstance(request, AllReduce):
        return ring_messages(request.tensor.nbytes, request.tensor.itemsize, world)
    peers = [r for r in range(world) if r != rank]
    if isinstance(request, ExchangeParts):
        return sum(request.messages[peer].byte_count(0).total > 0 for peer in peers)
    message = request.message
    if message.layout is not None:
        return len(peers) if message.layout.row_bytes else 0
    rows = peers if isinstance(request, Exchange | Sum) else [0] * len(peers)
    return len(peers) + sum(message.byte_count(row).total > 0 for row in rows)


def ring_messages(nbytes: int, itemsize: int, world: int) -> float:
    """Return a rank's messages in gloo's ring all-reduce, mean over ranks: two parts a rank, sent once in each half."""
    part = math.ceil(nbytes / (2 * world) / itemsize) * itemsize
    return 2 * (world - 1) * math.ceil(nbytes / part) / world if part else 0


class Shared(NamedTuple):
    """What every rank knows at the end of a reduce-scatter beyond its own row: an all-reduce need not gather it.

    ``ranges``: of columns. ``totals``: computes them for all rows, float32 ``[W, columns of the ranges side by side]``,
    the same bits on every rank, non-finite where this rank's own total is.
    """

    ranges: Ranges
    totals: Callable[[], Tensor]


class Reduced(NamedTuple):
    """The outcome of one compressed reduce-scatter on one rank.

    ``total``: float32 ``[n]``, the sum over ranks of this rank's row (the mean belongs to FSDP2).
    ``sent``: what this rank contributed, in the form its compressor's `contribution` reads (an `Encoded`
    for codecs): error feedback asks what the receivers made of it.
    ``shared``: columns whose totals every rank knows for all rows, if the method has such.
    """

    total: Tensor
    sent: Any
    shared: Shared | None = None


ReduceScatterRounds = Generator[Request, Any, Reduced]
AllGatherRounds = Generator[Request, Any, Tensor]
