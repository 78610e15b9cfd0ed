"""Time to quality, and quality at a time: what a method is worth to someone who waits for it."""

from __future__ import annotations

from typing import Any

from fsdp_lab.training.evaluate import Evaluation


class Goals:
    """Watches evaluations for the first that reaches ``target_ppl``, and for the first after ``at_s`` seconds.

    Seconds are those of optimizer steps: what evaluations, log lines and files take never counts.
    """

    def __init__(self, target_ppl: float | None, at_s: float | None) -> None:
        self.target_ppl, self._at_s = target_ppl, at_s
        self._reached: tuple[int, float] | None = None
        self._ppl_at: float | None = None

    @property
    def waits_for_time(self) -> bool:
        """Is there a fixed time whose perplexity is still wanted?"""
        return self._at_s is not None and self._ppl_at is None

    def is_time(self, train_seconds: float) -> bool:
        """Has the fixed time come, and was there no evaluation since?"""
        return self.waits_for_time and self._at_s is not None and train_seconds >= self._at_s

    def saw(self, step: int, train_seconds: float, evaluation: Evaluation) -> None:
        """Take note of an evaluation after ``step`` steps."""
        if self.target_ppl is not None and self._reached is None and evaluation.ppl <= self.target_ppl:
            self._reached = step, train_seconds
        if self.is_time(train_seconds):
            self._ppl_at = evaluation.ppl

    def state_dict(self) -> dict[str, Any]:
        """What was reached so far, as plain values."""
        return {"reached": self._reached, "ppl_at": self._ppl_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what another process reached, as its `state_dict` gave it."""
        self._reached, self._ppl_at = state["reached"], state["ppl_at"]

    def row(self) -> dict[str, Any]:
        """The fields of a results row: null where nothing was asked, or was not reached."""
        step, seconds = self._reached or (None, None)
        return {
            "reached_target": None if self.target_ppl is None else self._reached is not None,
            "steps_to_target_ppl": step,
            "time_to_target_ppl_s": seconds,
            "ppl_at_fixed_time": self._ppl_at,
        }
