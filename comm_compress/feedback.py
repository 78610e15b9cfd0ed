"""Error feedback around any compressor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from comm_compress.compressor import Compressor
from comm_compress.encoded import Encoded, Layout
from comm_compress.rounds import AllGatherRounds, Reduced, ReduceScatterRounds
from comm_compress.state import State

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class FeedbackConfig:
    """Settings of error feedback.

    ``dtype`` of the residual in memory; ``decay`` in [0, 1] multiplies the residual before it is added.
    """

    dtype: Literal["fp32", "bf16"] = "fp32"
    decay: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay = {self.decay!r}: must be between 0 and 1")


class ErrorFeedback(Compressor):
    """Adds what earlier steps left out, and keeps what this one leaves out (1-bit SGD, Interspeech 2014; MEM-SGD).

        target   = rows + decay * residual
        residual = target - decode(encode(target))

    Law: decoded + new residual = input + decayed old residual, to the residual's rounding, whatever the
    method. The residual has the size of the unit's whole unsharded gradient on every rank, and is held
    twice, so that a step that turns out to be void can be taken back (`State`). It is added to gradients,
    not to updates: a change of learning rate also rescales what is still waiting.
    """

    def __init__(self, inner: Compressor, config: FeedbackConfig) -> None:
        self.inner = inner
        self.decay, self.dtype = config.decay, DTYPES[config.dtype]
        self.name = inner.name
        self.linear, self.dense, self.max_ranks = inner.linear, inner.dense, inner.max_ranks
        self.settings = {**inner.settings, "error_feedback": vars(config)}

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The wrapped method's."""
        return self.inner.layout(n, torch.float32)

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """One step outside a collective: encode, and propose the new residual."""
        target = self._target(rows, state)
        message = self.inner.encode(target, state)
        self._keep(target, message, state)
        return message

    def decode(self, encoded: Encoded) -> Tensor:
        """The wrapped method's."""
        return self.inner.decode(encoded)

    def decode_sum(self, encoded: Encoded) -> Tensor:
        """The wrapped method's."""
        return self.inner.decode_sum(encoded)

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """The wrapped method's rounds over the target."""
        target = self._target(rows, state)
        reduced: Reduced = yield from self.inner.reduce_scatter(target, state)
        self._keep(target, reduced.sent, state)
        return reduced

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """Refused: the residual of a parameter is not a correction to its next value."""
        raise ValueError(f"{self.name}: error_feedback does not apply to all-gather")

    def _target(self, rows: Tensor, state: State) -> Tensor:
        residual = state.get("residual")
        target = (
            state.spare("residual", rows, torch.float32)
            if self.dtype == torch.float32
            else torch.empty_like(rows, dtype=torch.float32)
        )
        if residual is None:
            return target.copy_(rows)
        if residual.shape != rows.shape:
            raise ValueError(
                f"{self.name}: the residual has shape {tuple(residual.shape)} but this gradient has "
                f"{tuple(rows.shape)}: the unit's set of parameters with a gradient has changed. Use torch >= 2.13, "
                "where unused parameters are reduced as zeros, or turn error_feedback off"
            )
        return torch.add(rows, residual, alpha=self.decay, out=target)

    def _keep(self, target: Tensor, sent: Encoded, state: State) -> None:
        residual = self.inner.subtract_decoded(target, sent)
        if self.dtype != torch.float32:
            residual = state.spare("residual", residual, self.dtype).copy_(residual)
        state.propose("residual", residual)
