"""Entropy-constrained scalar quantisation, with scales of rows and columns.

Gish and Pierce, "Asymptotically efficient quantizing", 1968: a uniform quantiser whose codes are entropy coded is
within 0.25 bits of the rate-distortion bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.kernels import Matrices, Residual
from comm_compress.kernels.common.scratch import apart
from comm_compress.methods.shared.scaled_matrices import Scales, add_message, matrices_of_row, message_of, quantised
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
    (results/reference/update_error.md).

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
        target = state.scratch("target", tuple(rows.shape), torch.float32, rows.device)
        return self._encode(target.copy_(rows), state)

    def encode_with_feedback(self, rows: Tensor, residual: Residual, state: State) -> Encoded:
        """Encode the residual's target, and leave in ``residual.new`` what the codes lose."""
        return self._encode(kernels.residual(rows).write_target(rows, residual), state)

    def _encode(self, target: Tensor, state: State) -> Encoded:
        """Encode ``target`` float32 ``[R, n]``, which becomes what the codes lose of it."""
        n = target.shape[1]
        matrices = matrices_of_row(n, state.segments, self.config.columns, target.device)
        made = []
        for i, row in enumerate(target):
            scales, scratch = self._scales(row, matrices), apart(state.scratch, f"row {i}")
            made.append(message_of(scales, quantised(row, scales, self.config.dead_zone, scratch), scratch))
        return Encoded.ragged(made, n, state.scratch)

    def _scales(self, row: Tensor, matrices: Matrices) -> Scales:
        scales = Scales.of_rows(kernels.matrix_scales(row).row_mean_squares(row, matrices), matrices)
        if matrices.num_columns:
            scales = scales.with_columns(kernels.matrix_scales(row).column_mean_squares(row, scales.rows(), matrices))
        return scales.times(self.config.step)

    def decode(self, encoded: Encoded) -> Tensor:
        """The rows, float32 ``[R, n]``."""
        out = torch.zeros(encoded.num_rows, encoded.n, device=encoded.buffer.device)
        for i, row in enumerate(out):
            add_message(encoded.row(i), row, encoded.scratch)
        return out

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Add one row after the other to ``out``; decoded rows are never held."""
        out.zero_()
        for i in range(encoded.num_rows):
            add_message(encoded.row(i), out, encoded.scratch)
        return out
