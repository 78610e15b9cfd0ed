"""Loss and accuracy of the training-time test's steps, over the last steps of the training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fsdp_lab.eagle.training.training_time_test import Outcome
from fsdp_lab.ranks.distributed import Ranks

_AVERAGED = 20  # steps behind a results row's numbers


class Tally:
    """Sums over the rows of each of the last steps, this rank's: loss, first choices that are right, rows."""

    def __init__(self, ranks: Ranks, log_interval: int) -> None:
        self._ranks, self._log_interval = ranks, log_interval
        self._steps: list[Tensor] = []  # each float64 [3, K]

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """The micro-batches of one step."""
        self._steps.append(torch.stack([_sums(outcome) for outcome in outcomes]).sum(0))
        del self._steps[: -max(_AVERAGED, self._log_interval)]

    def scalars(self) -> dict[str, float]:
        """For a log line, and all losses for TensorBoard: means since the last one, over all ranks; collective."""
        loss, accuracy = self._means(self._log_interval)
        losses = {"train/loss_0": loss[0]} | {f"positions/loss_{k}": value for k, value in enumerate(loss)}
        return losses | {f"train/accuracy_{k}": value for k, value in enumerate(accuracy)}

    def row(self) -> dict[str, Any]:
        """The fields of a results row; null where nothing was supervised; collective."""
        names = "train_loss_by_position", "train_accuracy_by_position"
        means = self._means(_AVERAGED)
        return {n: m if all(map(math.isfinite, m)) else None for n, m in zip(names, means, strict=True)}

    def state_dict(self) -> dict[str, Any]:
        """The sums, as plain values."""
        return {"steps": [sums.tolist() for sums in self._steps]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self._steps = [torch.tensor(s, dtype=torch.float64, device=self._ranks.device) for s in state["steps"]]

    def _means(self, last: int) -> tuple[list[float], list[float]]:
        loss, correct, rows = self._ranks.sum(torch.stack(self._steps[-last:]).sum(0))
        return (loss / rows).tolist(), (correct / rows).tolist()


def _sums(outcome: Outcome) -> Tensor:
    tally = outcome.tally
    return torch.stack([x.sum((1, 2)).double() for x in (tally.loss, tally.correct, outcome.supervised)])
