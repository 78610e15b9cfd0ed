"""What a causal model reads and predicts of a batch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fsdp_lab.data.batches.labels import IGNORED


def tokens_and_targets(batch: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The tokens that a model reads, and at each position the one it has to say next: int64 ``[B, T]`` each.

    ``batch``: tokens, int64 ``[B, T]``, all of which but the first are predicted; or of conversations ``[B, T, 2]``, a
    token and its label at each position, of which those labelled are. A target is `IGNORED` where there is none: at the
    last position, and in rows with ``weight`` 0 (float ``[B]``), which are padding.
    """
    tokens, labels = (batch, batch) if batch.dim() == 2 else batch.unbind(-1)
    # targets are shifted instead of hidden states, because slicing would copy the hidden states
    targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if weight is not None:
        targets = targets.masked_fill(weight[:, None] == 0, IGNORED)
    return tokens, targets


def num_targets(batch: Tensor) -> int:
    """How many tokens of ``batch`` (as `tokens_and_targets` takes) are predicted."""
    if batch.dim() == 2:
        return batch.shape[0] * (batch.shape[1] - 1)
    return int((batch[:, 1:, 1] != IGNORED).sum())
