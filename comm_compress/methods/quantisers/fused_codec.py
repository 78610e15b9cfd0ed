"""Codecs whose whole arithmetic is one fused kernel for encoding and one for decoding."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded
from comm_compress.core.state import State
from comm_compress.kernels import Residual


class FusedCodec(Codec):
    """A codec that takes one pass over memory in each direction.

    A method says what its kernels are; they never see an empty row.
    Error feedback comes with the encoding pass: the kernel takes the residual as well.
    """

    @abstractmethod
    def _encode(self, rows: Tensor, out: Encoded, residual: Residual | None, state: State) -> None:
        """Fill ``out`` from float rows ``[R, n]``; with a residual, from its target, and write ``residual.new``."""

    @abstractmethod
    def _decode(self, encoded: Encoded, out: Tensor) -> None:
        """Write the rows to ``out`` ``[R, n]``, of any float dtype."""

    @abstractmethod
    def _sum(self, encoded: Encoded, out: Tensor) -> None:
        """Write the sum of the rows, in their order, to ``out`` (float32 ``[n]``): decoded rows are never held."""

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Encode in one pass over memory."""
        return self._message(rows, None, state)

    def encode_with_feedback(self, rows: Tensor, residual: Residual, state: State) -> Encoded:
        """Encode the residual's target and write what that loses, in one pass over memory."""
        return self._message(rows, residual, state)

    def _message(self, rows: Tensor, residual: Residual | None, state: State) -> Encoded:
        out = state.message(rows, self.layout(rows.shape[1], rows.dtype))
        if rows.numel():
            self._encode(rows, out, residual, state)
        return out

    def decode(self, encoded: Encoded) -> Tensor:
        """Return the rows as they arrive, float32 ``[R, n]``."""
        return self.decode_into(encoded, torch.empty(encoded.num_rows, encoded.n, device=encoded.buffer.device))

    def decode_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Write the rows to ``out``, of any float dtype."""
        if out.numel():
            self._decode(encoded, out)
        return out

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Write the sum of the rows to ``out``, float32."""
        if out.numel():
            self._sum(encoded, out)
        return out
