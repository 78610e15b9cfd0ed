"""Layers of which a rank holds a part of the weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from fsdp_lab.models.shards.pieces import Piece
from fsdp_lab.parallel.division.wiring import Collective


def keep_columns(linear: nn.Linear | Conv1D, piece: Piece) -> dict[str, Piece]:
    """Cuts a layer down to some of its outputs; what is left of its parameters, by their names.

    ``piece`` is of the outputs: dimension 0 of a Linear's weight, 1 of GPT-2's Conv1D, whose weight is transposed.
    """
    pieces = {"weight": Piece(1 if isinstance(linear, Conv1D) else 0, piece.parts)}
    if linear.bias is not None:
        pieces["bias"] = piece
    _cut(linear, pieces)
    if isinstance(linear, Conv1D):
        linear.nf = piece.size
    else:
        linear.out_features = piece.size
    return pieces


class RowLinear(nn.Module):
    """A layer of which this rank has some inputs: what it computes is a part of the sum that ``leave`` makes.

    Its parameters have the names and layouts of the ``whole`` layer, a Linear or GPT-2's Conv1D. The bias is added
    behind the sum, once.
    """

    def __init__(self, whole: nn.Linear | Conv1D, piece: Piece, leave: Collective) -> None:
        super().__init__()
        self.is_transposed = isinstance(whole, Conv1D)
        self.pieces = {"weight": Piece(0 if self.is_transposed else 1, piece.parts)}
        _cut(whole, self.pieces)
        self.weight: nn.Parameter = whole.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = whole.bias
        self._leave = leave

    def forward(self, x: Tensor) -> Tensor:
        """``x`` ``[B, T, inputs of this rank]``; returns the layer's output as ``leave`` hands it on."""
        y = self._leave(x @ self.weight if self.is_transposed else F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class VocabularyEmbedding(nn.Module):
    """An embedding of which this rank holds some words: the others' rows are zeros in the sum that ``leave`` makes."""

    def __init__(self, whole: nn.Embedding, words: range, leave: Collective) -> None:
        super().__init__()
        self.pieces = {"weight": Piece(0, (words,))}
        _cut(whole, self.pieces)
        self.weight, self.words, self._leave = whole.weight, words, leave

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens`` int64 ``[B, T]``; returns their rows, as ``leave`` hands them on."""
        here = tokens - self.words.start
        absent = (here < 0) | (here >= len(self.words))
        return self._leave(F.embedding(here.masked_fill(absent, 0), self.weight).masked_fill(absent[..., None], 0))


def _cut(module: nn.Module, pieces: dict[str, Piece]) -> None:
    """Replaces parameters by their pieces; those on the meta device have nothing to copy."""
    for name, piece in pieces.items():
        whole = module.get_parameter(name)
        with torch.no_grad():
            setattr(module, name, nn.Parameter(piece.take(whole), requires_grad=whole.requires_grad))
