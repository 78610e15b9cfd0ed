"""Validation loss: summed over tokens, never a mean of batch means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fsdp_lab.ranks.distributed import Ranks


class Evaluation(NamedTuple):
    """``loss`` in nats a token over ``tokens`` predicted tokens."""

    loss: float
    tokens: int

    @property
    def ppl(self) -> float:
        """Perplexity; infinite when it would not fit in a float."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    def row(self) -> dict[str, Any]:
        """The validation fields of a results row."""
        weights = "fp32 shards, gathered uncompressed"
        return {"val_loss": self.loss, "val_ppl": self.ppl, "val_tokens": self.tokens, "eval_weights": weights}


@torch.no_grad()
def summed_loss(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
    after_batch: Callable[[], None] | None = None,
) -> Tensor:
    """float64 [2]: summed loss and number of predicted tokens of (tokens int64 ``[B, T]``, weight float ``[B]``)."""
    model.eval()
    total = torch.zeros(2, dtype=torch.float64)
    for tokens, weight in batches:
        total[0] += model(tokens.to(device), weight.to(device)).double().cpu()
        total[1] += weight.sum() * (tokens.shape[1] - 1)
        if after_batch is not None:
            after_batch()
    model.train()
    return total


def evaluate(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], ranks: Ranks, after_batch: Callable[[], None]
) -> Evaluation:
    """The loss over all ranks' batches, equally many a rank; ``after_batch`` may be collective; collective."""
    total = summed_loss(model, batches, ranks.device, after_batch)
    loss, count = ranks.sum(total.to(ranks.device)).tolist()
    return Evaluation(loss / count, int(count))
