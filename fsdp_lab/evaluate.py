"""Validation loss: summed over tokens, never a mean of batch means."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fsdp_lab.distributed import Ranks


class Evaluation(NamedTuple):
    """``loss`` in nats a token over ``tokens`` predicted tokens."""

    loss: float
    tokens: int

    @property
    def ppl(self) -> float:
        """Perplexity; infinite when it would not fit in a float."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Tensor], ranks: Ranks) -> Evaluation:
    """Every rank brings equally many ``batches`` (int64 ``[B, T]``; padding rows begin with -100); collective."""
    model.eval()
    total = torch.zeros(2, dtype=torch.float64)
    for tokens in batches:
        total[0] += model(tokens.to(ranks.device)).double().cpu()
        total[1] += int((tokens[:, 0] >= 0).sum()) * (tokens.shape[1] - 1)
    model.train()
    loss, count = (ranks.sum(total.to(ranks.device)) if ranks.world > 1 else total).tolist()
    return Evaluation(loss / count, int(count))
