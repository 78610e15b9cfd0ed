"""Error feedback around any compressor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core import nonfinite
from comm_compress.core.compressor import Codec, Compressor
from comm_compress.core.rounds import AllGatherRounds, Gather, Reduced, ReduceScatterRounds
from comm_compress.core.state import State
from comm_compress.core.traits import combine
from comm_compress.kernels import BlockCode, Residual

INT8 = BlockCode(256, 8, 127)
"""How an int8 residual is kept."""


def to_int8(rows: Tensor, codes: Tensor, scales: Tensor) -> None:
    """Write float ``rows`` ``[R, n]`` as int8 ``codes`` ``[R, n]`` and float32 ``scales`` ``[R, INT8.blocks(n)]``."""
    if rows.numel():
        kernels.blocks(rows).encode(rows, INT8, None, codes.view(torch.uint8), scales)


def from_int8(codes: Tensor, scales: Tensor, out: Tensor) -> Tensor:
    """Write the numbers that int8 codes and their scales stand for to ``out`` float32 ``[R, n]``, and return it."""
    if out.numel():
        kernels.blocks(out).decode(codes.view(torch.uint8), scales, INT8, out)
    return out


@dataclass(frozen=True)
class FeedbackConfig:
    """Settings of error feedback.

    ``dtype``: how the residual is kept in memory, in 4, 2 or (int8, with a float32 scale for every 256 elements) 1 byte
    an element.
    ``decay``: the residual is multiplied by this before it is added.
    ``reset_every``: drop the residual every so many collectives (LoCo, arXiv 2407.04480); 0: never.
    """

    dtype: Literal["fp32", "bf16", "int8"] = "fp32"
    decay: float = 1.0
    reset_every: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay = {self.decay!r}: must be between 0 and 1")
        if self.reset_every < 0:
            raise ValueError(f"reset_every = {self.reset_every!r}: must be 0 (never) or positive")


class ErrorFeedback(Compressor):
    """Adds what earlier steps left out, and keeps what this one leaves out (1-bit SGD, Interspeech 2014; MEM-SGD).

        target   = rows + decay * residual
        residual = target - contribution(target)

    Law: contribution + new residual = input + decayed old residual, to the residual's rounding, whatever the
    method. The residual has the size of the unit's whole unsharded gradient on every rank, and is held
    twice, so that a step that turns out to be void can be taken back (`State`). It is added to gradients,
    not to updates: a change of learning rate also rescales what is still waiting.
    """

    def __init__(self, inner: Compressor, config: FeedbackConfig) -> None:
        self.inner, self.config = inner, config
        self.name = inner.name
        # what is sent holds earlier errors too
        self.traits = replace(
            combine(inner.traits),
            unbiased=False,
            lossless=False,
            for_parameters=False,
            for_changes=False,
            every_element=False,
            for_activations=False,
        )
        self.settings = {**inner.settings, "error_feedback": vars(config)}

    def traffic(self, n: int, world: int, dtype: torch.dtype = torch.float32) -> int | None:
        """The wrapped method sends float32 rows, whatever dtype the gradient has."""
        return self.inner.traffic(n, world, torch.float32)

    def contribution(self, sent: Any) -> Tensor:
        """The wrapped method says what it contributed: the residual is part of its input."""
        return self.inner.contribution(sent)

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Run the wrapped method's rounds over the target, and keep what they leave out."""
        residual = Residual(self._waiting(rows, state), self.config.decay, self._buffer(rows, state))
        reduced: Reduced = yield from self.inner.reduce_scatter_with_feedback(rows, residual, state)
        self._keep(residual.new, state)
        return reduced

    @property
    def carries_means(self) -> bool:
        """Can `all_gather` bring everyone what one rank has summed up: does the method send one message a row?"""
        return isinstance(self.inner, Codec) and not self.inner.traits.no_feedback

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """The rounds that bring every rank the ``row`` ``[n]`` of each, with what earlier gathers left out of it.

        For means that are added up over steps, as gradients are (DoubleSqueeze, arXiv 1905.05957): what a message loses
        comes with a later one. Of parameters, which replace each other, an old error says nothing; so a gather of
        parameters refuses feedback (`Traits.for_parameters`). The residual ``[1, n]`` is kept by who owns the row.
        """
        codec, rows = self.inner, row.unsqueeze(0)
        assert isinstance(codec, Codec), "see carries_means"
        state.judge(nonfinite.all_finite(rows))  # a mean has the NaN of any rank, and its owner's input may be finite
        residual = Residual(self._waiting(rows, state), self.config.decay, self._buffer(rows, state))
        message = codec.encode_with_feedback(rows, residual, state)
        self._keep(residual.new, state)
        received = yield Gather(message)
        if state.output is None:
            return codec.decode(received)
        return codec.decode_into(received, state.output.view(state.world, row.numel()))

    def residual(self, state: State) -> Tensor | None:
        """Return what waits for the next step, float32 or bfloat16 ``[W, n]``; None before the first one.

        What the last step proposed is committed first.
        """
        state.commit()
        return self._committed(state)

    def _committed(self, state: State) -> Tensor | None:
        residual = state.get("residual")
        scales = state.get("residual_scales")
        if residual is None or scales is None:
            return residual
        dense = state.scratch("old residual", tuple(residual.shape), torch.float32, residual.device)
        return from_int8(residual, scales, dense)

    def _buffer(self, rows: Tensor, state: State) -> Tensor:
        """Return memory for the new residual; in float32 that is also where it stays."""
        if self.config.dtype == "fp32":
            return state.spare("residual", rows, torch.float32)
        return state.scratch("residual", tuple(rows.shape), torch.float32, rows.device)

    def _waiting(self, rows: Tensor, state: State) -> Tensor | None:
        residual = self._committed(state)
        reset = self.config.reset_every and state.tick % self.config.reset_every == 0
        if residual is None or reset:
            return None
        if residual.shape != rows.shape:
            raise ValueError(
                f"{self.name}: the residual has shape {tuple(residual.shape)} but this gradient has "
                f"{tuple(rows.shape)}: the unit's set of parameters with a gradient has changed. Use torch >= 2.13, "
                "where unused parameters are reduced as zeros, or turn error_feedback off"
            )
        return residual

    def _keep(self, residual: Tensor, state: State) -> None:
        if self.config.dtype == "fp32":
            state.propose("residual", residual)
        elif self.config.dtype == "bf16":
            state.propose("residual", state.spare("residual", residual, torch.bfloat16).copy_(residual))
        else:
            codes = state.spare("residual", residual, torch.int8)
            blocks = residual.new_empty(residual.shape[0], INT8.blocks(residual.shape[1]))
            scales = state.spare("residual_scales", blocks, torch.float32)
            to_int8(residual, codes, scales)
            state.propose("residual", codes)
            state.propose("residual_scales", scales)
