"""Sums of all ranks' factors that every rank learns: added up by the network, or rounded, by way of owners."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress.core.compressor import Codec
from comm_compress.core.rounds import AllReduce, Exchange, Gather, Request
from comm_compress.core.state import State


class Sums(NamedTuple):
    """``totals``: the sums, the same bits on every rank. ``given``: what this rank gave; over all ranks they add up to
    ``totals``. Float32, in the shapes of the factors. ``finite``: are all totals (bool scalar)?"""

    totals: list[Tensor]
    given: list[Tensor]
    finite: Tensor


class FactorSums:
    """Sums factors ``[x, r]`` over ranks; without a ``codec`` in float32, by the network's all-reduce.

    With one, every rank owns a W-th of the elements: all send it theirs, encoded, and it sends the rounded sum to all.
    What a sum loses on its way back counts as given by its owner. Elements of a column lie side by side, as they are of
    one size.
    """

    def __init__(self, codec: Codec | None) -> None:
        self._codec = codec

    def of(self, factors: Sequence[Tensor], mark: Tensor, state: State) -> Generator[Request, Any, Sums]:
        """The rounds of one sum. ``mark``: 0, or NaN, which makes the totals of all ranks not finite."""
        flat = torch.cat([factor.mT.flatten() for factor in factors])
        flat[0] += mark
        if self._codec is None:
            total, given = (yield AllReduce(flat, "sum", "values")), flat
        else:
            total, given = yield from self._by_owners(self._codec, flat, state)
        return Sums(_apart(total, factors), _apart(given, factors), torch.isfinite(total).all())

    def _by_owners(self, codec: Codec, flat: Tensor, state: State) -> Generator[Request, Any, tuple[Tensor, Tensor]]:
        rows = flat.new_zeros(state.world, math.ceil(flat.numel() / state.world))
        rows.view(-1)[: flat.numel()] = flat
        message, arrives = codec.encode_and_decode(rows, state.child("there"))
        given = arrives.to(torch.float32, copy=True)
        own = codec.decode_sum((yield Exchange(message)))
        back, known = codec.encode_and_decode(own.unsqueeze(0), state.child("back"))
        given[state.rank] += known[0] - own
        total = codec.decode((yield Gather(back))).float()
        return total.view(-1)[: flat.numel()], given.view(-1)[: flat.numel()]


def _apart(flat: Tensor, factors: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split_with_sizes(flat, [factor.numel() for factor in factors])
    return [part.view(factor.shape[1], factor.shape[0]).mT for part, factor in zip(parts, factors, strict=True)]
