"""Gradients by way of owners: each submatrix is summed by one rank, which then sends every rank its rows of the sum.

Compressing on the way there and on the way back is the compressed all-reduce of 1-bit Adam (Tang et al., ICML 2021,
arXiv 2102.02888), whose servers own slices of a flat gradient; here an owner has a matrix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress.core import nonfinite
from comm_compress.core.compressor import Codec, Compressor
from comm_compress.core.encoded import ByteCount, Encoded, RaggedRow
from comm_compress.core.rounds import Exchange, Reduced, ReduceScatterRounds, Request
from comm_compress.core.segments import flatten
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.methods.owners.submatrices import Division, Share, divided
from comm_compress.methods.shared.value_codec import value_codec
from comm_compress.registry import nested, register, require


@dataclass(frozen=True)
class OwnersConfig:
    """Settings of owners.

    ``there``: the method that carries what a rank has of a submatrix to its owner; one that encodes row by row, in one
    round. Each submatrix is a parameter to it.
    ``back``: the method that carries sums from their owner to the ranks whose rows they are; one that encodes single
    rows and remembers nothing. A rank sends a W-th as many elements by it.
    """

    there: Mapping[str, Any] | str = "lowrank"
    back: Mapping[str, Any] | str = "int8"


class _Sent(NamedTuple):
    """What a rank gave to sums: by owner as rows ``[size]``, None where the owner has none.

    ``rounding``: what it added, as owner ``rank``, to its own sums by rounding them, ``[size]``.
    """

    division: Division
    given: list[Tensor | None]
    rounding: Tensor
    rank: int


@register("owners", OwnersConfig, error_feedback=True)
class Owners(Compressor):
    """Cut a unit's matrices among owners, ranks that sum what they own and send every rank its rows of the sum.

        there   what rank r has of the submatrices of rank d, to rank d
        sum     S_d = what arrived from all ranks together
        back    the rows of S_d that are in rank e's shard, from rank d to rank e

    Why: a reduce-scatter under FSDP2 sends each of W ranks a W-th of the rows of every matrix. These slices get thinner
    with every rank, and two thin factors of a thin slice have nearly as many elements as the slice. A submatrix with
    as many elements is as near to a square as it can be: factors of rank r of an h x w one have r (1 / h + 1 / w)
    numbers an element, those of a slice of an a x b matrix r (W / a + 1 / b).

    Bits an element: those of ``there``, and a W-th of those of ``back``. It takes two rounds, one after the other, and
    a sum is rounded a second time. What that loses counts as the owner's contribution, so that error feedback, which is
    on by default, makes good both losses. Owners have about equally much: the busiest may receive half as much again as
    the mean. A value that is not finite anywhere in a unit makes the total of every rank not finite.
    """

    traits = Traits(needs_segments=True)

    def __init__(self, config: OwnersConfig) -> None:
        self.there = _codec_of_parameters(config.there)
        self.back = value_codec(config.back, "back") or UNCOMPRESSED
        unbiased = self.there.traits.unbiased and self.back.traits.unbiased
        self.traits = dataclasses.replace(self.traits, unbiased=unbiased)

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Two exchanges: of submatrices to their owners, and of the sums' rows to the ranks whose they are."""
        if rows.shape[1] and not state.segments:
            raise ValueError(f"{self.name}: needs to know which parameter lies where (State.segments)")
        division = divided(state.segments, rows.shape[0])
        given, sums = yield from self._sum(rows, division, state)
        total = state.result((rows.shape[1],), rows.device).zero_()
        known = yield from self._return(sums, total, division, state)
        return Reduced(total, _Sent(division, given, known - sums, state.rank))

    def _sum(
        self, rows: Tensor, division: Division, state: State
    ) -> Generator[Request, Any, tuple[list[Tensor | None], Tensor]]:
        """The way there. Returns what this rank gave to each owner, and the sums of its own, float32 ``[size]``."""
        matrices, spoilt = division.matrices(rows), ~nonfinite.all_finite(rows)
        messages, given = [_nothing(rows.device)] * division.world, list[Tensor | None]([None] * division.world)
        for owners in division.alike:
            theirs = torch.stack([division.row(matrices, owner) for owner in owners])
            theirs[:, 0].masked_fill_(spoilt, torch.nan)  # for every owner to see, wherever it was
            child = state.child(f"there{owners[0]}", division.segments[owners[0]])
            encoded, decoded = self.there.encode_and_decode(theirs, child)
            for i, owner in enumerate(owners):
                messages[owner], given[owner] = _row(encoded, i), decoded[i].float()
        size = division.size(state.rank)
        received = yield Exchange(Encoded.ragged(messages, size, state.scratch))
        if not size:
            return given, rows.new_zeros(0, dtype=torch.float32)
        sums = self.there.decode_sum(_all_rows(received, self.there, size))
        return given, sums.masked_fill_(~nonfinite.all_finite(sums.unsqueeze(0)), torch.nan)

    def _return(self, sums: Tensor, total: Tensor, division: Division, state: State) -> Generator[Request, Any, Tensor]:
        """The way back: write this rank's ``total``. Returns its own sums ``[size]`` as others have them then."""
        messages, known = [_nothing(total.device)] * division.world, torch.empty_like(sums)
        for ranks in division.owed(state.rank):
            owed = [division.shares(state.rank, rank) for rank in ranks]
            taken = [torch.cat([sums[s.start : s.stop] for s in shares] or [sums[:1]]) for shares in owed]
            encoded, decoded = self.back.encode_and_decode(torch.stack(taken), state.child(f"back{ranks[0]}"))
            for i, rank in enumerate(ranks):
                messages[rank] = _row(encoded, i)
                for share, part in _parts(decoded[i], owed[i]):
                    known[share.start : share.stop] = part
        received = yield Exchange(Encoded.ragged(messages, total.numel(), state.scratch))
        for owner in range(division.world):
            shares, elements = division.shares(owner, state.rank), division.elements(owner, state.rank)
            if elements:
                row = self.back.decode(self.back.received(received.row(owner).clone(), elements))[0]
                for share, part in _parts(row, shares):
                    place = share.of_shard(total)
                    place.copy_(part.view_as(place))
                if not shares:
                    total.masked_fill_(~nonfinite.all_finite(row), torch.nan)
        return known

    def contribution(self, sent: _Sent) -> Tensor:
        """This rank's part of all sums, float32 ``[W, n]``, and what it lost of its own sums on their way back."""
        division = sent.division
        matrices = division.zeros(sent.rounding.device)
        for owner, row in enumerate(sent.given):
            if row is not None:
                division.add(row, owner, matrices)
        division.add(sent.rounding, sent.rank, matrices)
        return flatten(matrices, division.world) if matrices else sent.rounding.new_zeros(division.world, 0)


def _codec_of_parameters(config: Mapping[str, Any] | str) -> Codec:
    """The codec that ``there`` names, whose messages are decoded from nothing but themselves."""
    made = nested("there", config, error_feedback=False)
    # one with an exchange of its own sums on the wire, or decodes by what ranks have agreed on (randomk)
    fits = isinstance(made, Codec) and made.traits.for_gradients and type(made).exchange is Codec.exchange
    require(fits, "there", config, "a method for gradients that encodes row by row and sends all that decoding needs")
    assert isinstance(made, Codec)
    return made


def _row(encoded: Encoded, i: int) -> RaggedRow:
    """Row ``i`` of ``encoded``, to be sent beside rows of other lengths."""
    return RaggedRow([encoded.row(i)], encoded.byte_count(i))


def _nothing(device: torch.device) -> RaggedRow:
    return RaggedRow([torch.empty(0, dtype=torch.uint8, device=device)], ByteCount())


def _all_rows(received: Encoded, codec: Codec, n: int) -> Encoded:
    """All ranks' rows of ``n`` elements as ``codec`` reads them."""
    if codec.fixed_size:
        return Encoded(received.buffer, codec.layout(n, torch.float32), n, scratch=received.scratch)
    return dataclasses.replace(received, n=n)


def _parts(row: Tensor, shares: Sequence[Share]) -> Iterator[tuple[Share, Tensor]]:
    """The shares, and what a row ``[elements]`` has of each, one after another."""
    start = 0
    for share in shares:
        stop = start + share.stop - share.start
        yield share, row[start:stop]
        start = stop
