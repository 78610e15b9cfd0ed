"""What is shown and kept of a training as it goes: log lines, trackers' numbers and the lines of the curve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from fsdp_lab.measure import memory
from fsdp_lab.measure.clock import StepClock
from fsdp_lab.measure.samples import Sample
from fsdp_lab.measure.wire_check import WireCheck
from fsdp_lab.run.run import Run
from fsdp_lab.run.steps.counts import StepCounts
from fsdp_lab.run.steps.directions import Directions
from fsdp_lab.run.steps.profiled_steps import stock_bytes_are_unseen
from fsdp_lab.training.communication import Communication
from fsdp_lab.training.optim import StepOutcome


class Log:
    """Writes every ``log_interval`` steps, after the last step, and after a step whose gradient was compared."""

    def __init__(
        self,
        run: Run,
        comm: Communication,
        counts: StepCounts,
        clock: StepClock,
        wire: WireCheck,
        total_steps: int,
        done: int = 0,
    ) -> None:
        self._run, self._comm, self._counts, self._clock, self._wire = run, comm, counts, clock, wire
        self._interval, self._total_steps = run.config.run.log_interval, total_steps
        self._directions = Directions(comm, done, are_timed=not run.ranks.are_virtual)
        self.written_at = (0, 0.0, 0)
        """The last log line's step, with the seconds and the bytes until then."""

    def is_due(self, step: int) -> bool:
        """Does a log line follow this step?"""
        return step % self._interval == 0 or step == self._total_steps

    def after_step(
        self, step: int, outcome: StepOutcome, sample: Sample | None, more: Callable[[], Mapping[str, float]]
    ) -> None:
        """Write what is to be written of a step; collective. ``more`` is asked for other numbers of a log line."""
        kept: dict[str, float | None] = {}
        if self.is_due(step):
            scalars = self._scalars(step, outcome, more)
            self._run.progress.report(step, scalars | memory.scalars(self._run.ranks.device))
            self._run.progress.record(step, self._directions.scalars(step))
            kept = {"train_loss": scalars["train/loss"], "grad_norm": outcome.grad_norm}
        if sample is not None:
            self._run.progress.record(step, {f"fidelity/{name}": value for name, value in asdict(sample).items()})
            kept |= {"grad_norm": outcome.grad_norm, **asdict(sample)}
        if kept:
            self.add_to_curve(step, **kept)

    def add_to_curve(self, step: int, **values: float | None) -> None:
        """One line of the curve: where the training stands, and ``values``."""
        seconds = None if self._run.ranks.are_virtual else self._clock.train_seconds
        tokens, sent = self._counts.tokens, self._comm.sent_bytes(step)
        self._run.curve.add(step=step, train_seconds=seconds, tokens=tokens, sent_bytes=sent, **values)

    def _scalars(self, step: int, outcome: StepOutcome, more: Callable[[], Mapping[str, float]]) -> dict[str, float]:
        """The numbers of a log line: of this step, or since the last line."""
        before, seconds_before, bytes_before = self.written_at
        seconds, sent = self._clock.train_seconds, self._comm.totals().sent_bytes
        scalars = {
            "train/loss": self._counts.mean_loss(self._interval),
            "train/grad_norm": outcome.grad_norm,
            "train/learning_rate": outcome.learning_rate,
        }
        if not stock_bytes_are_unseen(self._run, self._comm):
            hooked = (sent - bytes_before) / (step - before)
            scalars["comm/sent_bytes_per_step"] = hooked + self._comm.stock.sent_bytes
        if outcome.loss_scale is not None:
            scalars["train/loss_scale"] = outcome.loss_scale
        if not self._run.ranks.are_virtual:
            scalars["speed/tokens_per_s"] = self._counts.tokens_between(before, step) / (seconds - seconds_before)
        self.written_at = (step, seconds, sent)
        with self._wire.paused():
            return scalars | dict(more())
