"""Evaluations in the middle of a training and after it: when one is due, and where its numbers go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fsdp_lab.measure.clock import StepClock
from fsdp_lab.measure.wire_check import WireCheck
from fsdp_lab.run.run import Run
from fsdp_lab.run.steps.log import Log
from fsdp_lab.training.evaluate import Evaluation


class Evaluations:
    """Those of one run. What they send and how long they take is no step's."""

    def __init__(self, run: Run, clock: StepClock, wire: WireCheck, log: Log, total_steps: int) -> None:
        self._run, self._clock, self._wire, self._log, self._total_steps = run, clock, wire, log, total_steps
        self._goals = run.record.goals

    def is_due(self, step: int) -> bool:
        """Is it time for an evaluation, by steps or by the clock, and this not the last step? Collective."""
        every = self._run.config.run.eval_steps
        by_clock = step > 0 and self._goals.waits_for_time and self._goals.is_time(self._agreed_seconds())
        return 0 < step < self._total_steps and (by_clock or (every > 0 and step % every == 0))

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """While one is made: who watches the bar sees why it stands still."""
        self._run.progress.busy("validating")
        with self._wire.paused():
            yield
        self._run.progress.busy(None)

    def show(self, step: int, evaluation: Evaluation) -> None:
        """Report an evaluation in the middle of training; collective."""
        self._run.progress.report(step, evaluation.scalars())
        self._keep(step, evaluation)

    def show_number(self, step: int, name: str, value: float) -> None:
        """Report one number that was measured in another way; ``name`` is one of the curve's."""
        self._run.progress.report(step, {f"val/{name}": value})
        self._log.add_to_curve(step, **{name: value})

    def note_last(self, evaluation: Evaluation) -> None:
        """Record the evaluation after the last step, which the results row has; collective."""
        self._run.progress.record(self._total_steps, evaluation.scalars())
        self._keep(self._total_steps, evaluation)
        self._run.note(**evaluation.row())

    def _keep(self, step: int, evaluation: Evaluation) -> None:
        self._goals.saw(step, self._agreed_seconds(), evaluation)
        self._log.add_to_curve(step, val_loss=evaluation.loss, val_ppl=evaluation.ppl)

    def _agreed_seconds(self) -> float:
        """Rank 0's seconds of training, so that all ranks agree on what they still wait for; collective."""
        with self._wire.paused():
            return self._run.ranks.broadcast(self._clock.train_seconds)
