"""Entropy-constrained scalar quantisation, with scales of rows and columns.

Gish and Pierce, "Asymptotically efficient quantizing", 1968: a uniform quantiser whose codes are entropy coded is
within 0.25 bits of the rate-distortion bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded, RaggedRow
from comm_compress.core.rounds import Exchange, Reduced, ReduceScatterRounds
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.kernels import Quantiser, Residual
from comm_compress.kernels.tools.scratch import apart
from comm_compress.methods.shared.scaled_matrices import Quantised, matrices_of_row
from comm_compress.registry import register, require


@dataclass(frozen=True)
class EcsqConfig:
    """Settings of ecsq.

    ``step``: the distance of two values, in standard deviations (about zero) of what scales of rows and columns leave.
    ``dead_zone``: magnitudes below so many steps become 0, below one more 1 step, and so on; 0.5 rounds to nearest.
    More takes fewer bits, and what it holds back lags behind.
    ``columns``: have columns scales of their own, or rows only?
    """

    step: float = 1.4
    dead_zone: float = 0.5
    columns: bool = True

    def __post_init__(self) -> None:
        require(0.05 <= self.step <= 4, "step", self.step, "between 0.05 and 4 standard deviations")
        require(0.5 <= self.dead_zone < 1, "dead_zone", self.dead_zone, "at least 0.5 (nearest) and less than 1")


@register("ecsq", EcsqConfig, error_feedback=True)
class Ecsq(Codec):
    """Send whole numbers of any size, entropy coded, times a scale for each row and each column of a matrix.

        x[i, j] ~ k[i, j] r[i] c[j],  k coded by rANS
        r[i] = step rms_j(x[i, j]),  c[j] = rms_i(x[i, j] / r[i]),   in quarters of an octave, a byte each
        |k| = floor(|x / (r c)| + 1 - dead_zone)

    A uniform quantiser whose codes are entropy coded is within 0.25 bits of the rate-distortion bound at any rate (Gish
    and Pierce, 1968): no number of levels and no cut is to be chosen. It costs where elements of different size share
    a step, hence both scales, as in Adafactor's second moment (arXiv 1804.04235). Adam divides every element by its own
    size, so an error on a small one is as bad as on a large one.

    A dead zone takes fewer bits at the same error (Sullivan, 1996), but what it holds back lags: with feedback, on
    gradients of `gpt2-mini`, the share of the momentum that has not arrived is 0.015 at 0.7 and 0.001 at 0.5
    (results/reference/errors/update_error.md).

    Biased (small elements become 0), so error feedback is on by default; as the values of `delta` the replica's
    distance is fed back anyway. A matrix is a parameter's shard with its last dimension as columns; where the unit's
    parameters are unknown, 256 elements are a row. A matrix that is not finite arrives as NaN.

    Bits an element: the codes' entropy (of a Gaussian 1.6 with step 1.4, 2.1 with 1, 2.6 with 0.7, 3.0 with 0.5) and
    at most 8 / b + 8 / a for the scales.
    """

    fixed_size = False
    traits = Traits(for_changes=True, every_element=True, for_activations=True)

    def __init__(self, config: EcsqConfig) -> None:
        self.config = config

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Encode each row as a message of its own length."""
        return self._encode(self._as_float32(rows, state), state, keep=False)[0]

    def encode_and_decode(self, rows: Tensor, state: State) -> tuple[Encoded, Tensor]:
        """Encode each row, and decode it from its codes: entropy coding loses nothing."""
        encoded, made = self._encode(self._as_float32(rows, state), state, keep=False)
        out = torch.zeros(rows.shape, device=rows.device)
        for quantised, row in zip(made, out, strict=True):
            quantised.add_to(row)
        return encoded, out

    def encode_with_feedback(self, rows: Tensor, residual: Residual, state: State) -> Encoded:
        """Encode the residual's target, and leave in ``residual.new`` what the codes lose."""
        return self._encode(kernels.residual(rows).write_target(rows, residual), state)[0]

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Encode the rows, exchange them, and sum what arrives."""
        return (yield from self._exchange(*self._encode(self._as_float32(rows, state), state, keep=False), state))

    def reduce_scatter_with_feedback(self, rows: Tensor, residual: Residual, state: State) -> ReduceScatterRounds:
        """Encode the residual's target and exchange it; the new residual is ready before anything is sent."""
        target = kernels.residual(rows).write_target(rows, residual)
        return (yield from self._exchange(*self._encode(target, state), state))

    def _as_float32(self, rows: Tensor, state: State) -> Tensor:
        if rows.dtype == torch.float32 and rows.is_contiguous():
            return rows
        return state.scratch("target", tuple(rows.shape), torch.float32, rows.device).copy_(rows)

    def _encode(self, target: Tensor, state: State, keep: bool = True) -> tuple[Encoded, list[Quantised]]:
        """Encode ``target`` float32 ``[R, n]``, which becomes what the codes lose, to ``keep`` it.

        Return what rows stand for, too.
        """
        n, quantiser = target.shape[1], Quantiser(self.config.step, self.config.dead_zone, keep=keep)
        matrices = matrices_of_row(n, state.segments, self.config.columns, target.device)
        made, messages = list[Quantised](), list[RaggedRow]()
        for i, row in enumerate(target):
            scratch = apart(state.scratch, f"row {i}")
            made.append(Quantised.of(row, matrices, quantiser, scratch))
            messages.append(made[-1].message(scratch))
        return Encoded.ragged(messages, n, state.scratch), made

    def _exchange(self, message: Encoded, made: list[Quantised], state: State) -> ReduceScatterRounds:
        """Exchange messages, and sum what arrives; this rank knows what its own message to itself stands for."""
        received = yield Exchange(message)
        out = state.result((message.n,), message.buffer.device)
        return Reduced(self._sum(received, out, {state.rank: made[state.rank]}), message)

    def decode(self, encoded: Encoded) -> Tensor:
        """The rows, float32 ``[R, n]``."""
        out = torch.zeros(encoded.num_rows, encoded.n, device=encoded.buffer.device)
        for i, row in enumerate(out):
            Quantised.read(encoded.row(i), encoded.n, encoded.scratch).add_to(row)
        return out

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Add one row after the other to ``out``; decoded rows are never held."""
        return self._sum(encoded, out, {})

    def _sum(self, encoded: Encoded, out: Tensor, known: Mapping[int, Quantised]) -> Tensor:
        out.zero_()
        for i in range(encoded.num_rows):
            (known.get(i) or Quantised.read(encoded.row(i), encoded.n, encoded.scratch)).add_to(out)
        return out
