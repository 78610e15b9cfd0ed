"""The optimizer steps of a run: each is timed, counted, logged and, now and then, profiled or compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from fsdp_lab.checkpoint import Restored
from fsdp_lab.measure import memory, peak
from fsdp_lab.measure.clock import StepClock
from fsdp_lab.measure.wire_check import WireCheck
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.results.derived import derived
from fsdp_lab.run.display.compile_notice import CompileNotice
from fsdp_lab.run.record import seconds_since_process_start
from fsdp_lab.run.run import Run
from fsdp_lab.run.steps.counts import StepCounts
from fsdp_lab.run.steps.evaluations import Evaluations
from fsdp_lab.run.steps.log import Log
from fsdp_lab.run.steps.profiled_steps import ProfiledSteps
from fsdp_lab.run.steps.sampling import Sampling
from fsdp_lab.trace import Profile
from fsdp_lab.training.communication import Communication
from fsdp_lab.training.evaluate import Evaluation
from fsdp_lab.training.optim import StepOutcome


class Loop:
    """Training from its first step, or from a checkpoint, to its last; when it is made, training has begun.

    ``tokens_in_step``: of all ranks in each step, or in step n. ``restored``: where an earlier process has left it.
    """

    def __init__(
        self,
        run: Run,
        comm: Communication,
        total_steps: int,
        tokens_in_step: int | Callable[[int], int],
        restored: Restored | None = None,
    ) -> None:
        self.run, self.total_steps = run, total_steps
        self.done = 0 if restored is None else restored.step
        """Steps made so far, by this process or before it."""
        self._comm = comm
        warmup = self.done + min(5, (total_steps - self.done) // 4)
        self._clock = StepClock(run.ranks.device, warmup)
        self._wire = WireCheck(run.ranks.link, run.ranks, comm.claim)
        self._counts = StepCounts(run.ranks, run.config.run, tokens_in_step, run.say)
        self._profiled = ProfiledSteps(run, comm, total_steps, self.done, warmup)
        self._window = self._profiled.window
        self._sampling = Sampling(comm, run.ranks, run.config.run.grad_error_every, self._window.disturbs)
        self._log = Log(run, comm, self._counts, self._clock, self._wire, total_steps, self.done)
        self.evaluations = Evaluations(run, self._clock, self._wire, self._log, total_steps)
        if restored is not None:
            self._load_state_dict(restored.training)
        run.closing.callback(self._window.close)
        run.begin(total_steps, self.done)

    @property
    def profile(self) -> Profile | None:
        """What the traces say, if a profile was asked for and could be read."""
        return self._profiled.profile

    # ---- step by step ---------------------------------------------------------------------------------------

    def steps(self) -> Iterator[int]:
        """The steps that are left, from 1 in a new run, each timed until `after_step`."""
        self._wire.open()
        with CompileNotice(self.run.progress) as notice:
            for step in range(self.done + 1, self.total_steps + 1):
                self._window.begin_step(step)
                self.run.at("step", step)
                if self._sampling.is_due(step):
                    self._wire.close()  # comparing sends bytes of its own
                    self._comm.begin_comparison()
                self._clock.start()
                yield step
                notice.after_step()
                self.run.passed("profile")
                if (events := self._window.collect(step)) is not None:
                    with self._wire.paused():
                        self._profiled.observe(events)
        self._wire.close()

    def after_step(
        self, step: int, loss: torch.Tensor, outcome: StepOutcome, more: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        """Stop the clock; then count and log, and take back what a void step did to the compressors. Collective.

        ``more``: asked for other numbers when it is time for a log line; may be collective. Raises `Preempted` on all
        ranks when any was told to stop.
        """
        self.run.passed("end of step")
        self._window.end_step()
        is_sampled = self._sampling.is_due(step)
        self._stop_clock(step, is_sampled)
        sample = self._sampling.take()
        if step == self._clock.warmup_steps:
            self._comm.warmed_up(step)
        self._count(step, loss, outcome)
        self._log.after_step(step, outcome, sample, more)
        self.done = step
        self.run.stop.agree()
        self.run.watchdog.watch()  # from the first step's end: that one may have compiled
        # the norm, the agreement to go on, the mean loss; overflow in fp16
        self._wire.after_step(all_reduces=2 + self._log.is_due(step) + (outcome.loss_scale is not None))
        if is_sampled:
            self._wire.open()

    def _stop_clock(self, step: int, is_sampled: bool) -> None:
        is_steady = step > self._clock.warmup_steps and not self._window.disturbs(step)
        self._clock.stop(keep=is_steady and not is_sampled, sampled=is_sampled)

    def _count(self, step: int, loss: torch.Tensor, outcome: StepOutcome) -> None:
        if not outcome.taken:
            self._comm.rollback()
        self._counts.add(step, loss, outcome)
        self.run.progress.step()
        if "time_to_first_step_s" not in self.run.record.noted:
            self.run.note(time_to_first_step_s=seconds_since_process_start())

    # ---- checkpoints ----------------------------------------------------------------------------------------

    @property
    def is_void(self) -> bool:
        """Was the last optimizer step skipped, so that nothing of it may be saved?"""
        return self._counts.is_void

    def paused(self) -> AbstractContextManager[None]:
        """Inside, what is sent is no step's; collective."""
        return self._wire.paused()

    def state_dict(self) -> dict[str, Any]:
        """What the row will need of the steps so far, of this rank, as plain values and tensors."""
        return {
            **self._counts.state_dict(),
            "clock": self._clock.state_dict(self.done),
            "goals": self.run.record.goals.state_dict(),
            "samples": self._sampling.samples.state_dict(),
            "reported_at": self._log.written_at,
        }

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts.load_state_dict(state)
        self._clock.load_state_dict(state["clock"], self.done)
        self.run.record.goals.load_state_dict(state["goals"])
        self._sampling.samples.load_state_dict(state["samples"])
        self._log.written_at = state["reported_at"]

    # ---- the end --------------------------------------------------------------------------------------------

    def finish(self, evaluation: Evaluation | None = None) -> dict[str, Any]:
        """Append the row of a run that went well and return it; collective."""
        run, steps = self.run, self.total_steps
        if evaluation is not None:
            self.evaluations.note_last(evaluation)
        run.progress.leave_bar()
        timing = self._clock.row(self._counts.tokens / steps)
        by_process = run.ranks.gather(self._comm.rows(steps, timing["step_time_ms_mean"]))
        run.note(
            **_mean([row for rows in by_process for row in rows]),
            **self._wire.row(self._comm.stock.claim),
            **timing,
            **self._sampling.samples.row(),
            **self._counts.row(steps),
            train_time_s=self._clock.train_seconds,
            **memory.row(run.ranks),
            **_peak(run.ranks, run.record.noted["param_dtype"]),
        )
        run.note(**derived({**run.config.row(), **run.record.noted, "world_size": run.ranks.world}))
        row = run.ending.ended_well()
        run.trackers.log_row(steps, row)
        run.ranks.broadcast(None)  # whoever leaves before it is written could not say that rank 0 died over it
        return row


def _peak(ranks: Ranks, param_dtype: str) -> dict[str, Any]:
    """What the ranks' devices can do, asked of all at the same time; collective."""
    ranks.gather(None)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(param_dtype, torch.float32)
    return peak.row(ranks.gather(peak.peak_flops(ranks.device, dtype)))


def _mean(rows: list[Any]) -> Any:
    """Ranks' equal-shaped rows as one: numbers are averaged, everything else must be alike."""
    first = rows[0]
    if isinstance(first, dict):
        return {key: _mean([row[key] for row in rows]) for key in first}
    if isinstance(first, bool) or not isinstance(first, int | float):
        return first
    mean = sum(rows) / len(rows)
    return round(mean) if isinstance(first, int) else mean
