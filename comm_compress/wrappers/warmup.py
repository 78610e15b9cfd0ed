"""When not to compress: small units, and the first steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress.core.compressor import Compressor
from comm_compress.core.rounds import AllGatherRounds, Reduced, ReduceScatterRounds
from comm_compress.core.state import State
from comm_compress.core.traits import combine


class _Sent(NamedTuple):
    by: Compressor
    message: Any


class Sparing(Compressor):
    """``inner``, except for units below ``min_numel`` elements and for the first ``warmup_steps`` collectives.

    Those go by ``plain`` (`identity`). A unit counts all its ranks' rows, padding included, so that every rank
    decides alike. During the warm-up nothing is left out, so no residual builds up.
    """

    def __init__(self, inner: Compressor, plain: Compressor, warmup_steps: int, min_numel: int) -> None:
        self.inner, self.plain = inner, plain
        self.warmup_steps, self.min_numel = warmup_steps, min_numel
        self.name, self.traits = inner.name, combine(inner.traits, plain.traits)
        self.settings = {**inner.settings, "warmup_steps": warmup_steps, "min_numel": min_numel}

    def _chosen(self, numel: int, state: State) -> Compressor:
        return self.plain if numel < self.min_numel or state.tick <= self.warmup_steps else self.inner

    def traffic(self, n: int, world: int, dtype: torch.dtype = torch.float32) -> int | None:
        """Return the chosen method's traffic; None with a warm-up, since it changes then."""
        if self.warmup_steps:
            return None
        return (self.plain if world * n < self.min_numel else self.inner).traffic(n, world, dtype)

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Run the rounds of the method that is chosen for this unit and step."""
        chosen = self._chosen(rows.numel(), state)
        reduced: Reduced = yield from chosen.reduce_scatter(rows, state)
        return reduced._replace(sent=_Sent(chosen, reduced.sent))

    def contribution(self, sent: _Sent) -> Tensor:
        """Ask the method that sent the message."""
        return sent.by.contribution(sent.message)

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """Run the rounds of the method that is chosen for this unit and step."""
        return (yield from self._chosen(row.numel() * state.world, state).all_gather(row, state))
