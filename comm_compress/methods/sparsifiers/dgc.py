"""Deep Gradient Compression: top-k of accumulated momentum.

Lin, Han, Mao, Wang and Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
Training", ICLR 2018, arXiv 1712.01887.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.encoded import Encoded
from comm_compress.core.state import State
from comm_compress.kernels import Residual
from comm_compress.methods.shared.sparse_rows import Chosen, Indices, SparseCodec, SparseLayout, SparseRows
from comm_compress.registry import register, require

WARMUP_FROM = 0.25  # the density that the warm-up begins with, as in the paper


@dataclass(frozen=True)
class DGCConfig:
    """Settings of dgc.

    ``ratio``: the share of every destination row that is sent, once the warm-up is over.
    ``warmup_ratio_steps``: over so many first collectives the ratio falls exponentially from 0.25 to ``ratio``.
    ``momentum``: m, the share of the accumulated momentum that each step keeps.
    ``momentum_masking``: forget the momentum of what was sent.
    ``clip_unit_norm``: scale this rank's gradient of a unit down to this 2-norm before it is accumulated; null: not.
    ``values``: the method that carries a row's sent values, as a row of their own; null: float32.
    ``indices``: how positions are coded; "best" is the smallest code of fixed size where values have one too, and
    otherwise the smallest of all. See `SparseRows`.
    """

    ratio: float = 0.001
    warmup_ratio_steps: int = 0
    momentum: float = 0.9
    momentum_masking: bool = True
    clip_unit_norm: float | None = None
    values: str | Mapping[str, Any] | None = None
    indices: Indices = "best"

    def __post_init__(self) -> None:
        require(0 < self.ratio <= 1, "ratio", self.ratio, "above 0 and at most 1")
        require(self.warmup_ratio_steps >= 0, "warmup_ratio_steps", self.warmup_ratio_steps, "0 or more")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "from 0 to below 1")
        positive = self.clip_unit_norm is None or self.clip_unit_norm > 0
        require(positive, "clip_unit_norm", self.clip_unit_norm, "positive")


@register("dgc", DGCConfig)
class DGC(SparseCodec):
    """Each rank accumulates momentum, and momentum into velocity, and sends the largest velocities (arXiv 1712.01887).

        u = m u + g                       momentum correction
        v = v + u                         what waits to be sent
        send the largest |v|; there u = 0 (momentum factor masking), v = v - sent

    Replaces the optimizer's momentum: use plain SGD without one. Followed by Adam it is another algorithm, whose
    gradients are rare sums of momenta. v is the method's own residual, so error feedback around it is refused.
    u and v are float32, two of each, of the unit's whole unsharded size. ``values`` that round leave their
    error in v.

    The paper clips by N^(-1/2) of the threshold for the norm of all gradients, which no unit sees;
    ``clip_unit_norm`` bounds the unit's own norm on this rank, with whatever threshold is given.

    Biased, no bound for a single step. Bits an element: ``ratio`` times those of a value and a position, as topk.
    """

    traits = replace(SparseCodec.traits, for_activations=False, no_feedback="dgc keeps what it does not send itself")

    def __init__(self, config: DGCConfig) -> None:
        super().__init__(SparseRows(config.indices, config.values))
        self.config = config
        self.fixed_size = self.rows.fixed_size and config.warmup_ratio_steps == 0

    def kept(self, n: int, tick: int) -> int:
        """How many of ``n`` elements are sent in collective number ``tick`` (1 for the first)."""
        ratio, steps = self.config.ratio, self.config.warmup_ratio_steps
        if tick <= steps and ratio < WARMUP_FROM:
            ratio = WARMUP_FROM * (ratio / WARMUP_FROM) ** ((tick - 1) / steps)
        return min(n, max(1, round(ratio * n)))

    def layout(self, n: int, dtype: torch.dtype) -> SparseLayout:
        """The layout of a row after the warm-up: k values and k positions."""
        return self.rows.layout(n, self.kept(n, self.config.warmup_ratio_steps + 1))

    def choose(self, rows: Tensor, residual: Residual | None, state: State) -> Chosen:
        """Choose the elements whose velocities are largest."""
        assert residual is not None, "v is what is chosen from"
        shape = rows.shape[0], self.kept(rows.shape[1], max(state.tick, 1))
        positions = state.scratch("positions", shape, torch.int32, rows.device)
        values = state.scratch("values", shape, torch.float32, rows.device)
        kernels.select(rows).largest(rows, positions, values, residual, state.scratch)
        return Chosen(values, positions)

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Accumulate the gradient, send the largest velocities and keep the rest."""
        momentum, velocity = self._momentum(rows, state), state.spare("v", rows, torch.float32)
        residual = Residual(self._previous("v", rows, state), 1.0, velocity)
        chosen = self.choose(momentum, residual, state)
        sent = self.coded(chosen, rows.shape[1], state)
        state.propose("v", self.rows.subtract(velocity, sent, chosen.indices))
        if self.config.momentum_masking:
            for row, positions in zip(momentum, chosen.indices, strict=True):
                row.index_fill_(0, positions.long(), 0)
        state.propose("u", momentum)
        return sent

    def _momentum(self, rows: Tensor, state: State) -> Tensor:
        """The new momentum u = m u + g, float32 ``[R, n]``."""
        old, momentum = self._previous("u", rows, state), state.spare("u", rows, torch.float32)
        if self.config.clip_unit_norm is not None:
            rows = state.scratch("clipped", tuple(rows.shape), torch.float32, rows.device).copy_(rows)
            norm = torch.linalg.vector_norm(rows)
            rows.mul_((self.config.clip_unit_norm / norm).clamp_(max=1))  # a zero norm: infinity, clamped
        return kernels.residual(rows).write_target(rows, Residual(old, self.config.momentum, momentum))

    def _previous(self, name: str, rows: Tensor, state: State) -> Tensor | None:
        old = state.get(name)
        if old is not None and old.shape != rows.shape:
            raise ValueError(
                f"{self.name}: what waits to be sent has shape {tuple(old.shape)} but this gradient has "
                f"{tuple(rows.shape)}: the unit's set of parameters with a gradient has changed. Use torch >= 2.13, "
                "where unused parameters are reduced as zeros"
            )
        return old
