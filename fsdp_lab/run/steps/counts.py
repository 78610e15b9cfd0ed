"""What the optimizer steps of a run add up to: tokens, losses, and the steps that were skipped or clipped."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.groups import RunConfig
from fsdp_lab.training.optim import StepOutcome

_LOSSES_AVERAGED = 20  # behind the training loss of a results row


class StepCounts:
    """Sums over all steps so far, also over those of an earlier process that this run goes on from.

    ``tokens_in_step``: of all ranks, in each step or in step n. ``say`` gets a line for each skipped step.
    """

    def __init__(
        self, ranks: Ranks, config: RunConfig, tokens_in_step: int | Callable[[int], int], say: Callable[[str], None]
    ) -> None:
        self._ranks, self._config, self._tokens_in_step, self._say = ranks, config, tokens_in_step, say
        self.tokens = 0
        """Of all ranks."""
        self.is_void = False
        """Was the last step skipped?"""
        self._losses: list[torch.Tensor] = []  # this rank's, of the last steps
        self._clipped = self._nonfinite = self._nonfinite_in_a_row = 0
        self._scaler_skipped: int | None = None  # no number where nothing is scaled
        self._loss_scale: float | None = None

    def add(self, step: int, loss: torch.Tensor, outcome: StepOutcome) -> None:
        """Count one step. FloatingPointError when too many in a row had gradients that are not finite."""
        self.tokens += self._tokens_in(step)
        self._losses.append(loss)
        del self._losses[: -max(_LOSSES_AVERAGED, self._config.log_interval)]
        self._clipped += outcome.clipped
        self._loss_scale, self.is_void = outcome.loss_scale, not outcome.taken
        if outcome.loss_scale is not None and self._scaler_skipped is None:
            self._scaler_skipped = 0
        if outcome.taken:
            self._nonfinite_in_a_row = 0
        elif outcome.loss_scale is not None and outcome.loss_scale > 1:
            self._count_overflow(outcome.loss_scale)
        else:
            self._count_nonfinite()

    def _count_overflow(self, scale: float) -> None:
        """Count a step that overflowed in fp16: that is how a loss scale is seen to be too large."""
        self._scaler_skipped = (self._scaler_skipped or 0) + 1
        self._say(f"step skipped: fp16 overflowed with a loss scale of {scale:,.0f}; halved")

    def _count_nonfinite(self) -> None:
        self._nonfinite += 1
        self._nonfinite_in_a_row += 1
        self._say(f"step skipped: a gradient is not finite ({self._nonfinite} so far)")
        if self._nonfinite_in_a_row >= self._config.max_nonfinite_steps:
            raise FloatingPointError(f"{self._nonfinite_in_a_row} steps in a row with gradients that are not finite")

    def tokens_between(self, first: int, last: int) -> float:
        """Tokens of all ranks in the steps after ``first``, up to ``last``."""
        return math.fsum(self._tokens_in(step) for step in range(first + 1, last + 1))

    def mean_loss(self, last: int) -> float:
        """Mean over ranks of the last steps' losses; collective."""
        return float(self._ranks.sum(torch.stack(self._losses[-last:]).mean())) / self._ranks.world

    def row(self, steps: int) -> dict[str, Any]:
        """The fields of a results row after ``steps`` steps; collective."""
        return {
            "steps": steps,
            "tokens_seen": self.tokens,
            "nonfinite_steps": self._nonfinite,
            "scaler_skipped_steps": self._scaler_skipped,
            "loss_scale": self._loss_scale,
            "clip_rate": self._clipped / steps,
            "train_loss": self.mean_loss(_LOSSES_AVERAGED),
        }

    def state_dict(self) -> dict[str, Any]:
        """The sums of this rank so far, as plain values and tensors."""
        return {
            "tokens": self.tokens,
            "losses": torch.stack(self._losses),
            "nonfinite_steps": self._nonfinite,
            "nonfinite_in_a_row": self._nonfinite_in_a_row,
            "scaler_skipped_steps": self._scaler_skipped,
            "clipped_steps": self._clipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Count on from the sums of another process, as its `state_dict` gave them."""
        self.tokens = int(state["tokens"])
        self._losses = list(state["losses"].to(self._ranks.device))
        self._nonfinite, self._clipped = state["nonfinite_steps"], state["clipped_steps"]
        self._nonfinite_in_a_row = state["nonfinite_in_a_row"]
        self._scaler_skipped = state.get("scaler_skipped_steps")  # older checkpoints know no fp16

    def _tokens_in(self, step: int) -> int:
        return self._tokens_in_step(step) if callable(self._tokens_in_step) else self._tokens_in_step
