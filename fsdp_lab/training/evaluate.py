"""Validation loss: summed over tokens, never a mean of batch means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.ranks.distributed import Ranks


class Evaluation(NamedTuple):
    """``loss`` in nats a token over ``tokens`` predicted tokens; of a masked model those that were masked.

    ``accuracy``: the share of these tokens that are the model's first choice. ``pair_loss`` (nats a pair) and
    ``pair_accuracy``: of a masked model's second task, telling which segment follows; else None.
    """

    loss: float
    tokens: int
    accuracy: float
    pair_loss: float | None = None
    pair_accuracy: float | None = None

    @classmethod
    def of(cls, total: Tensor) -> Evaluation:
        """From `summed_loss`, perhaps added up over ranks."""
        rows, tokens, loss, right, *of_pairs = total.tolist()
        return cls(loss / tokens, int(tokens), right / tokens, *(one / rows for one in of_pairs))

    @property
    def ppl(self) -> float:
        """Perplexity; infinite when it would not fit in a float."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    def row(self) -> dict[str, Any]:
        """The validation fields of a results row."""
        weights = "fp32 shards, gathered uncompressed"
        row: dict[str, Any] = {"val_loss": self.loss, "val_ppl": self.ppl, "val_accuracy": self.accuracy}
        row |= {"val_tokens": self.tokens, "eval_weights": weights}
        if self.pair_loss is None:
            return row
        return {**row, "val_next_sentence_loss": self.pair_loss, "val_next_sentence_accuracy": self.pair_accuracy}

    def scalars(self) -> dict[str, float]:
        """What trackers and log lines have of it."""
        scalars = {"val/loss": self.loss, "val/ppl": self.ppl, "val/accuracy": self.accuracy}
        if self.pair_accuracy is not None:
            scalars["val/next_sentence_accuracy"] = self.pair_accuracy
        return scalars


@torch.no_grad()
def summed_loss(
    model: Objective,
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
    after_batch: Callable[[], None] | None = None,
) -> Tensor:
    """Sums over the rows with weight 1 of batches (int64 ``[B, T, ...]``, weight float ``[B]``), float64.

    The number of rows, of predicted tokens, and what the model sums up: its loss, how many of these tokens are its
    first choice, and both for the pairs of a masked model.
    """
    model.eval()
    total = torch.zeros(2, dtype=torch.float64)
    for batch, weight in batches:
        sums = model(batch.to(device), weight.to(device)).double().cpu().view(-1)
        counted = batch[weight > 0]
        counts = torch.tensor([len(counted), model.num_targets(counted)], dtype=torch.float64)
        total = torch.cat([total, total.new_zeros(2 + len(sums) - len(total))]) + torch.cat([counts, sums])
        if after_batch is not None:
            after_batch()
    model.train()
    return total


def evaluate(
    model: Objective, batches: Iterable[tuple[Tensor, Tensor]], ranks: Ranks, after_batch: Callable[[], None]
) -> Evaluation:
    """The loss over all ranks' batches, equally many a rank; ``after_batch`` may be collective; collective."""
    total = summed_loss(model, batches, ranks.device, after_batch)
    return Evaluation.of(ranks.sum_over_data(total.to(ranks.device)))
