"""The method delta: parameters as changes since the last gather, in one of three ways.

The quantised changes are the weight half of SDP4Bit (Jia et al., NeurIPS 2024, arXiv 2410.15526).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from comm_compress.core.compressor import Codec, Compressor
from comm_compress.core.encoded import Encoded, RaggedRow
from comm_compress.core.state import State
from comm_compress.methods.delta.changes import Change, LossyDelta
from comm_compress.methods.delta.grid import STEP, GridDelta
from comm_compress.methods.delta.lossless import LosslessDelta
from comm_compress.methods.delta.moves import MovesDelta
from comm_compress.registry import nested, register, require

DEFAULT_VALUES = {"method": "int4", "block_size": 2048}


@dataclass(frozen=True)
class DeltaConfig:
    """Settings of delta.

    ``mode``: "quantized" sends the change by the method ``values``, "grid" how far parameters moved on a grid,
    "lossless" the entropy-coded distance in ulps, so that parameters arrive bit for bit.
    ``values``: of mode "quantized", the method that carries the change: one that may carry parameters or their changes,
    also with ``entropy``.
    ``predict``: of mode "quantized", that share of the last change is expected again, and only the rest is sent.
    ``step``: of mode "grid", the distance of two values, in root mean squares of their matrix's row.
    ``moves``: of mode "grid", that distance is at most so many of the row's largest moves between two gathers, in root
    mean squares too: for small learning rates, as in fine-tuning. None: no limit.
    """

    mode: Literal["quantized", "grid", "lossless"] = "quantized"
    values: Mapping[str, Any] | str = field(default_factory=lambda: dict(DEFAULT_VALUES))
    predict: float = 0.0
    step: float = STEP
    moves: float | None = None

    def __post_init__(self) -> None:
        require(0 <= self.predict < 1, "predict", self.predict, "at least 0 and less than 1")
        require(0 < self.step <= 1, "step", self.step, "above 0, at most 1")
        limited = self.moves is None or 0.1 <= self.moves <= 100
        require(limited, "moves", self.moves, "between 0.1 and 100 moves")
        if self.mode != "quantized":
            require(self.values == DEFAULT_VALUES, "values", self.values, f"left out with mode {self.mode!r}")
            require(self.predict == 0, "predict", self.predict, f"0 with mode {self.mode!r}")
        if self.mode != "grid":
            require(self.step == STEP, "step", self.step, f"left out with mode {self.mode!r}")
            require(self.moves is None, "moves", self.moves, f"left out with mode {self.mode!r}")


class QuantizedDelta(LossyDelta):
    """replica <- replica + q(row - replica): the weight half of SDP4Bit (arXiv 2410.15526).

    The difference is always taken to what receivers have, so an error is made good in the next step: it is fed
    back by construction, does not accumulate, and stays within q's bound for the changes of one step. With
    absmax blocks of b bits, |replica - row| <= max|change in the block| / (2^b - 2), and the rounding of the
    row's dtype. Bits an element: those of q.
    """

    def __init__(self, config: DeltaConfig) -> None:
        codec = nested("values", config.values, error_feedback=False)
        carries = isinstance(codec, Codec) and (codec.traits.for_parameters or codec.traits.for_changes)
        wanted = "a method that encodes row by row and may carry parameters or their changes"
        require(carries, "values", config.values, wanted)
        assert isinstance(codec, Codec)
        self.codec = codec
        self.traits = replace(self.traits, needs_segments=codec.traits.needs_segments)

    def _change(self, row: Tensor, expected: Tensor, state: State) -> Change | None:
        child = state.child("values", state.segments)
        encoded = self.codec.encode_change(row, expected, self._scratch(row, state), child)
        if encoded is None:
            return None
        self._keep(row, state)
        return self._made_of(encoded, state)

    def _made_of(self, encoded: Encoded, state: State) -> Change:
        row = RaggedRow([encoded.row(0)], encoded.byte_count(0))
        return Change(row, lambda replica: self.codec.add_into(encoded, replica, self._scratch(replica, state)))

    def _advance(self, replica: Tensor, data: Tensor, rank: int, state: State) -> None:
        self.codec.add_into(self._received(replica, data), replica, self._scratch(replica, state))

    def _received(self, replica: Tensor, data: Tensor) -> Encoded:
        return self.codec.received(data.clone(), replica.numel())  # the clone is aligned

    def _difference(self, replica: Tensor, data: Tensor, state: State) -> Tensor:
        received = self._received(replica, data)
        return self.codec.decode_into(received, self._scratch(replica, state).unsqueeze(0))[0]


class PredictedDelta(QuantizedDelta):
    """replica <- expected + q(row - expected), expected = replica + p (replica - the one before), p = ``predict``.

    Optimizers with momentum take steps that resemble the last one, so that less is left to send (differential pulse
    code modulation; not in the paper). Where Adam's gradients are white noise, beta1 = 0.9 and p = 0.8, the error of q
    about halves at nearly the same bits. It keeps the last change of all rows, a third copy of the unsharded
    parameters. The bound on the error is then one of row - expected.
    """

    def __init__(self, config: DeltaConfig) -> None:
        super().__init__(config)
        # an element that is left out would drift on by itself
        steady = self.codec.traits.for_parameters or self.codec.traits.every_element
        require(steady, "predict", config.predict, "0 with values that leave elements out")
        self.predict = config.predict

    def _expected(self, replicas: Tensor, rank: int, state: State) -> Tensor:
        return self._ahead(replicas[rank], rank, state)

    def _ahead(self, replica: Tensor, rank: int, state: State) -> Tensor:
        return replica.float() + self.predict * self._moved(replica, state)[rank].float()

    def _made_of(self, encoded: Encoded, state: State) -> Change:
        return super()._made_of(encoded, state)._replace(make=None)  # `_follow` has to see what moved

    def _advance(self, replica: Tensor, data: Tensor, rank: int, state: State) -> None:
        replica.copy_(self._ahead(replica, rank, state) + self._difference(replica, data, state))

    def _follow(
        self, replica: Tensor, message: Tensor, known: bool, dtype: torch.dtype, rank: int, state: State
    ) -> None:
        before = replica.clone()
        super()._follow(replica, message, known, dtype, rank, state)
        change = replica - before if known else torch.zeros_like(replica)
        moved = state.changing("moved", self._moved(replica, state))
        moved[rank] = torch.where(torch.isfinite(change), change, 0)

    def _moved(self, replica: Tensor, state: State) -> Tensor:
        """The last change of all replicas, ``[W, n]``."""
        moved, shape = state.get("moved"), (state.world, replica.numel())
        if moved is None or moved.shape != shape or moved.dtype != replica.dtype:
            moved = replica.new_zeros(shape)
            state.put("moved", moved)
        return moved


@register("delta", DeltaConfig)
def delta(config: DeltaConfig) -> Compressor:
    """Send changes of parameters: quantised (the default), on a grid, or bit for bit."""
    if config.mode == "lossless":
        return LosslessDelta()
    if config.mode == "grid":
        return GridDelta(config.step) if config.moves is None else MovesDelta(config.step, config.moves)
    return PredictedDelta(config) if config.predict else QuantizedDelta(config)
