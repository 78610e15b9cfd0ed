"""Loss and accuracy of each step of the training-time test, averaged over the last optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fsdp_lab.eagle.training.training_time_test import Outcome
from fsdp_lab.ranks.distributed import Ranks

_AVERAGED = 20  # optimizer steps over which a results row's numbers are averaged


class Tally:
    """For each of the last optimizer steps, this rank's sums over all rows: loss, correct first choices, and rows."""

    def __init__(self, ranks: Ranks, log_interval: int) -> None:
        self._ranks, self._log_interval = ranks, log_interval
        self._steps: list[Tensor] = []  # each float64 [3, K]

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Adds the micro-batches of one optimizer step."""
        self._steps.append(torch.stack([_sums(outcome) for outcome in outcomes]).sum(0))
        del self._steps[: -max(_AVERAGED, self._log_interval)]

    def scalars(self) -> dict[str, float]:
        """Mean losses and accuracies since the last log line, over all ranks. All ranks call this together."""
        loss, accuracy = self._means(self._log_interval)
        losses = {"train/loss_0": loss[0]} | {f"positions/loss_{k}": value for k, value in enumerate(loss)}
        return losses | {f"train/accuracy_{k}": value for k, value in enumerate(accuracy)}

    def row(self) -> dict[str, Any]:
        """The fields of a results row, null where nothing was supervised. All ranks call this together."""
        names = "train_loss_by_position", "train_accuracy_by_position"
        means = self._means(_AVERAGED)
        return {n: m if all(map(math.isfinite, m)) else None for n, m in zip(names, means, strict=True)}

    def state_dict(self) -> dict[str, Any]:
        """The sums of the last optimizer steps, as plain values."""
        return {"steps": [sums.tolist() for sums in self._steps]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the sums that `state_dict` returned."""
        self._steps = [torch.tensor(s, dtype=torch.float64, device=self._ranks.device) for s in state["steps"]]

    def _means(self, last: int) -> tuple[list[float], list[float]]:
        loss, correct, rows = self._ranks.sum(torch.stack(self._steps[-last:]).sum(0))
        return (loss / rows).tolist(), (correct / rows).tolist()


def _sums(outcome: Outcome) -> Tensor:
    scores = outcome.scores
    return torch.stack([x.sum((1, 2)).double() for x in (scores.loss, scores.correct, outcome.supervised)])
