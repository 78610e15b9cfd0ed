"""One training run around its loop: ranks, folders, clocks, the voice of rank 0, and what its results row says.

fsdp_output/runs/<run_name>/config.yaml      every setting, resolved
                            checkpoints/     with --save_steps, or when it was told to stop (docs/checkpoints.md)
                            curve.jsonl      the run's course, line by line (or <curves_dir>/<run_name>.jsonl)
                            final_model/     Hugging Face folder with tokenizer (of a draft: draft/)
fsdp_output/logs/<run_name>/tensorboard/     TensorBoard events
                            profiler/        traces, with --profile
results/results.jsonl                        one row a run, also of a run that failed
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch

from fsdp_lab import results
from fsdp_lab.checkpoint import NOT_BEGUN, may_resume
from fsdp_lab.files import disk
from fsdp_lab.measure import memory, peak
from fsdp_lab.measure.clock import StepClock
from fsdp_lab.measure.profile_report import read_profile
from fsdp_lab.measure.profile_report import row as profile_row
from fsdp_lab.measure.profiling import Op, StockTraffic, Window, phase, stock_calls
from fsdp_lab.measure.samples import Sample, Samples
from fsdp_lab.measure.wire_check import WireCheck
from fsdp_lab.ranks import faults
from fsdp_lab.ranks.distributed import Ranks, agree, join
from fsdp_lab.ranks.preempt import RankLostError
from fsdp_lab.results.derived import derived
from fsdp_lab.run.compile_notice import CompileNotice
from fsdp_lab.run.curve import Curve
from fsdp_lab.run.ending import Ending
from fsdp_lab.run.goals import Goals
from fsdp_lab.run.lock import RunLock
from fsdp_lab.run.progress import Progress
from fsdp_lab.run.record import Record, seconds_since_process_start
from fsdp_lab.settings.config import AnyTraining, default_run_name
from fsdp_lab.settings.methods import check_compression
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.trace import Profile
from fsdp_lab.training.communication import Communication
from fsdp_lab.training.evaluate import Evaluation
from fsdp_lab.training.optim import StepOutcome

_STOCK_WINDOW_STEPS = 5
_LOSSES_AVERAGED = 20


class Run:
    """Everything about a run that is neither model nor data."""

    def __init__(self, config: AnyTraining, ranks: Ranks, name: str) -> None:
        self.config, self.ranks, self.name = config, ranks, name
        self.folder = Path(config.run.output_dir) / "runs" / name
        logs = Path(config.run.output_dir) / "logs" / name
        self.events, self.traces = logs / "tensorboard", logs / "profiler"
        self.curve_path = self.folder / "curve.jsonl"
        if config.run.curves_dir is not None:
            self.curve_path = Path(config.run.curves_dir) / f"{name}.jsonl"
        self.curve = Curve(self.curve_path if ranks.is_first else None)
        self.goals = Goals(config.run.target_ppl, config.run.ppl_at_s)
        self.record = Record(config, ranks, name, self.curve_path, self.goals)
        self.note = self.record.note
        self.ending = Ending(self.record, config, ranks, self.folder)
        self.stop, self.watchdog = self.ending.stop, self.ending.watchdog
        self.samples = Samples()
        self.model_folder = self.folder / "final_model"
        """Where what was trained is saved."""
        self.is_training = False
        self._lock: RunLock | None = None
        self.is_resumed = False
        """Has the run's folder been there, with what an earlier process left?"""
        self.done = 0
        """Steps made so far, by this process or before it."""
        self.resumed_at: list[int] = []
        self.progress = Progress(0, False, None)  # silent until training begins
        self.tell: Callable[[str], None] = self.say
        """A line from rank 0, also where a progress bar is."""
        self._resumed: dict[str, Any] = {}
        self.window = Window(first=0, steps=0, traces=None, rank=ranks.rank)
        self.profile: Profile | None = None
        self.nonfinite_steps = self.clipped_steps = 0
        self._nonfinite_in_a_row = 0
        self.scaler_skipped_steps: int | None = None  # no number where nothing is scaled
        self.is_void = False
        """Was the last step skipped?"""
        self._loss_scale: float | None = None
        self._losses: list[torch.Tensor] = []
        self._tokens = 0  # all ranks', in the steps made so far
        self._reported_at = (0, 0.0, 0)

    @classmethod
    @contextmanager
    def start(cls, config: AnyTraining) -> Iterator[Run]:
        """Join the ranks, agree with them, and make sure that every way out leaves a row.

        ``config`` must leave nothing open (`fsdp_lab.settings.presets.resolve`).
        """
        check_compression(config.comm)
        with join(config) as ranks:
            agree(config, ranks)
            injected = faults.arm(ranks.rank)
            name = ranks.broadcast(config.run.run_name or default_run_name(config.comm.comm_compress, config.trained))
            run = cls(config, ranks, name)
            run.note(injected_fault=injected)
            run._open_folders()
            try:
                yield run
            except ValueError as error:
                if run.is_training:  # by now it is our mistake, not the user's
                    run.ending.failed(error)
                    raise RuntimeError(f"training failed: {error}") from error
                run._forget()
                raise
            except BaseException as error:
                lost = run.ending.failed(error)
                if lost is not None:
                    raise RankLostError(lost) from error
                raise
            finally:
                run.progress.leave_bar()  # however it ended, the last words are not written behind a bar
                run.watchdog.close()
                run.window.close()
                run._unlock()
            if run.ending.unwritten is not None:  # all else went well
                raise run.ending.unwritten

    # ---- the loop -------------------------------------------------------------------------------------------

    def begin(self, total: int, comm: Communication, tokens: int | Callable[[int], int]) -> None:
        """Training is about to begin, or to go on after `done` of ``total`` steps.

        ``tokens``: of all ranks in each step, or in step n.
        """
        self.comm, self.total_steps, self.is_training = comm, total, True
        if self.ranks.is_first:
            (self.folder / NOT_BEGUN).unlink(missing_ok=True)
        self._tokens_in = tokens if callable(tokens) else lambda step: tokens
        warmup = self.done + min(5, (total - self.done) // 4)
        self.clock = StepClock(self.ranks.device, warmup)
        if self._resumed:
            self.clock.load_state_dict(self._resumed["clock"], self.done)
        self.window = self._window(warmup, total)
        self.wire = WireCheck(self.ranks.link, self.ranks, comm.claim)
        events = self.events if self.config.run.tensorboard else None
        self.progress = Progress(total, self.ranks.is_first, events, self.done)
        self.tell = self.progress.say

    def steps(self) -> Iterator[int]:
        """The steps that are left, from 1 in a new run, each timed until `after_step`."""
        self.wire.open()
        with CompileNotice(self.progress) as notice:
            for step in range(self.done + 1, self.total_steps + 1):
                self.window.begin_step(step)
                self.at("step", step)
                if self._sample_due(step):
                    self.wire.close()  # comparing sends bytes of its own
                    self.comm.begin_comparison()
                self.clock.start()
                yield step
                notice.after_step()
                self.watchdog.passed("profile")
                if (events := self.window.collect(step)) is not None:
                    with self.wire.paused():
                        self._observe(events)
        self.wire.close()

    def after_step(
        self, step: int, loss: torch.Tensor, outcome: StepOutcome, more: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        """Stop the clock; then log, and take back what a void step did to the compressors.

        ``more``: asked for other numbers when it is time for a log line; may be collective.
        """
        self.watchdog.passed("end of step")
        self.window.end_step()
        is_sampled = self._sample_due(step)
        is_steady = step > self.clock.warmup_steps and not self.window.disturbs(step)
        self.clock.stop(keep=is_steady and not is_sampled, sampled=is_sampled)
        self._tokens += self._tokens_in(step)
        sample = self._take_sample()
        if step == self.clock.warmup_steps:
            self.comm.warmed_up(step)
        self._losses.append(loss)
        del self._losses[: -max(_LOSSES_AVERAGED, self.config.run.log_interval)]
        self.clipped_steps += outcome.clipped
        self._count_nonfinite(outcome)
        self.progress.step()
        if "time_to_first_step_s" not in self.record.noted:
            self.note(time_to_first_step_s=seconds_since_process_start())
        logged = self._report(step, outcome, more) if self._log_due(step) else {}
        if sample is not None:
            self.progress.record(step, {f"fidelity/{name}": value for name, value in asdict(sample).items()})
            logged |= {"grad_norm": outcome.grad_norm, **asdict(sample)}
        if logged:
            self._add_to_curve(step, **logged)
        self.done = step
        self.stop.agree()
        self.watchdog.watch()  # from the first step's end: that one may have compiled
        # the norm, the agreement to go on, the mean loss; overflow in fp16
        self.wire.after_step(all_reduces=2 + self._log_due(step) + (outcome.loss_scale is not None))
        if is_sampled:
            self.wire.open()

    def at(self, point: str, step: int | None = None) -> None:
        """The run has come to ``point`` (of ``step``, which begins): the watchdog hears of it, a fault may be due."""
        self.watchdog.passed(point, step)
        faults.at(point, step=step)

    @contextmanager
    def phase(self, name: Literal["forward", "backward", "optimizer"]) -> Iterator[None]:
        """A phase of a step, for whoever reads the profile or asks where a rank stands."""
        self.at(name)
        with phase(name):
            yield

    @contextmanager
    def saving_model(self) -> Iterator[None]:
        """While `model_folder` is written: where the disk does not take it, half a model does not stay. OSError."""
        self.watchdog.passed("model")
        was_there = self.model_folder.exists()
        faults.at("model", path=self.model_folder / "config.json", writes=self.ranks.is_first)
        try:
            with disk.refusals(self.model_folder):
                yield
        except OSError:
            if self.ranks.is_first and not was_there:
                shutil.rmtree(self.model_folder, ignore_errors=True)
            raise

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """What is sent meanwhile is no step's, and who watches the bar sees why it stands still."""
        self.progress.busy("validating")
        with self.wire.paused():
            yield
        self.progress.busy(None)

    def check_while_reading(self) -> None:
        """Called again and again while the data are tokenised or waited for; raises `Preempted`."""
        self.at("tokenize")
        self.stop.check()

    def after_validation_batch(self) -> None:
        """Called by all ranks after each of their validation batches; raises `Preempted`; collective."""
        self.at("validate")
        self.stop.agree()

    def evaluation_due(self, step: int) -> bool:
        """Is it time for an evaluation, by steps or by the clock, and this not the last step? Collective."""
        every = self.config.run.eval_steps
        by_clock = step > 0 and self.goals.waits_for_time and self._is_time()
        return 0 < step < self.total_steps and (by_clock or (every > 0 and step % every == 0))

    def show(self, step: int, name: str, value: float) -> None:
        """A number that was measured in the middle of training; ``name`` is one of the curve's."""
        self.progress.report(step, {f"val/{name}": value})
        self._add_to_curve(step, **{name: value})

    def show_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """An evaluation in the middle of training."""
        self.progress.report(step, {"val/loss": evaluation.loss, "val/ppl": evaluation.ppl})
        self._evaluated(step, evaluation)

    def written(self) -> dict[str, Path]:
        """Where everything went, for the summary."""
        places = {"results row": Path(self.config.run.results_path), "settings": self.folder / "config.yaml"}
        places["loss curve"] = self.curve_path
        if self.config.run.save_model:
            places["model"] = self.model_folder
        if self.config.run.tensorboard:
            places["TensorBoard"] = self.events
        if self.config.run.profile:
            places["profile"] = self.traces
        return places

    def say(self, text: str) -> None:
        """A line from rank 0."""
        if self.ranks.is_first:
            print(text, flush=True)

    # ---- checkpoints ----------------------------------------------------------------------------------------

    def state_dict(self, step: int) -> dict[str, Any]:
        """Of this rank after ``step`` steps: what the row will need of them, as plain values and tensors."""
        return {
            "tokens": self._tokens,
            "clock": self.clock.state_dict(step),
            "goals": self.goals.state_dict(),
            "samples": self.samples.state_dict(),
            "losses": torch.stack(self._losses),
            "nonfinite_steps": self.nonfinite_steps,
            "nonfinite_in_a_row": self._nonfinite_in_a_row,
            "scaler_skipped_steps": self.scaler_skipped_steps,
            "clipped_steps": self.clipped_steps,
            "reported_at": self._reported_at,
            "resumed_at": self.resumed_at,
        }

    def resume(self, step: int, state: dict[str, Any]) -> None:
        """Go on after ``step`` steps of another process, which left `state_dict`'s answer. Call it before `begin`."""
        self.done, self._resumed, self._tokens = step, state, int(state["tokens"])
        self.goals.load_state_dict(state["goals"])
        self.samples.load_state_dict(state["samples"])
        self._losses = list(state["losses"].to(self.ranks.device))
        self.nonfinite_steps, self.clipped_steps = state["nonfinite_steps"], state["clipped_steps"]
        self._nonfinite_in_a_row = state["nonfinite_in_a_row"]
        self.scaler_skipped_steps = state.get("scaler_skipped_steps")  # older checkpoints know no fp16
        self._reported_at = state["reported_at"]
        self.resumed_at = [*state["resumed_at"], step]
        self.curve.rewind(step)

    # ---- the row --------------------------------------------------------------------------------------------

    def finish(self, evaluation: Evaluation | None = None) -> dict[str, Any]:
        """Append the row of a run that went well and return it; collective."""
        steps = self.total_steps
        if evaluation is not None:
            self.progress.record(steps, {"val/loss": evaluation.loss, "val/ppl": evaluation.ppl})
            self._evaluated(steps, evaluation)
            self.note(**evaluation.row())
        self.progress.close()
        timing = self.clock.row(self._tokens / steps)
        by_process = self.ranks.gather(self.comm.rows(steps, timing["step_time_ms_mean"]))
        comm = _mean([row for rows in by_process for row in rows])
        self.note(
            **comm,
            **self.wire.row(self.comm.stock.claim),
            **timing,
            **self.samples.row(),
            steps=steps,
            tokens_seen=self._tokens,
            nonfinite_steps=self.nonfinite_steps,
            scaler_skipped_steps=self.scaler_skipped_steps,
            loss_scale=self._loss_scale,
            clip_rate=self.clipped_steps / steps,
            train_loss=self._mean_loss(_LOSSES_AVERAGED),
            train_time_s=self.clock.train_seconds,
            **memory.row(self.ranks),
            **self._peak(),
        )
        self.note(**derived({**self.record.noted, "world_size": self.ranks.world}))
        row = self.ending.ended_well()
        self.ranks.broadcast(None)  # whoever leaves before it is written could not say that rank 0 died over it
        return row

    def _forget(self) -> None:
        """The settings were refused before training began: leave the name free and no row."""
        if self.ranks.is_first and not self.is_resumed:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _peak(self) -> dict[str, Any]:
        """What the ranks' devices can do, asked of all at the same time; collective."""
        self.ranks.gather(None)
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.record.noted["param_dtype"], torch.float32)
        return peak.row(self.ranks.gather(peak.peak_flops(self.ranks.device, dtype)), self.ranks.device)

    # ---- details --------------------------------------------------------------------------------------------

    def _open_folders(self) -> None:
        found = self._make_folders() if self.ranks.is_first else (None, False)
        complaint, self.is_resumed = self.ranks.broadcast(found)
        if complaint is not None:
            raise ConfigError([complaint])
        where = "all in this process" if self.ranks.are_virtual else self.ranks.backend
        self.say(f"run {self.name}: world size {self.ranks.world}, {where}, {self.ranks.device.type}")
        self.say("".join(f"  {line}\n" for line in self.config.to_yaml().splitlines()))

    def _make_folders(self) -> tuple[str | None, bool]:
        """Rank 0's part; what went wrong, for all ranks to say, and whether there is a run to go on with."""
        try:
            results.ensure_appendable(Path(self.config.run.results_path))
            self._lock = RunLock(self.folder)
            is_resumed = not self._lock.is_new and may_resume(self.folder, self.config)
            complaint = self._prepare(is_resumed)
        except ValueError as error:
            return str(error), False  # names results_path or run_name
        except OSError as error:
            complaint = f"output_dir, curves_dir: cannot write {error.filename or self.folder}: {error.strerror}"
        if complaint is not None:
            self._unlock(forget=self._lock is not None and self._lock.is_new)
            return complaint, False
        return None, is_resumed

    def _prepare(self, is_resumed: bool) -> str | None:
        assert self._lock is not None
        if not (self._lock.is_new or is_resumed):
            return f"run_name: {self.folder} exists already; choose another name (or none)"
        if self.curve_path.exists() and not is_resumed:
            return f"run_name: {self.curve_path} exists already; choose another name (or none)"
        if not is_resumed:
            (self.folder / NOT_BEGUN).touch()  # first of all: killed from here on, the same command begins again
        (self.folder / "config.yaml").write_text(self.config.to_yaml())
        self.curve_path.parent.mkdir(parents=True, exist_ok=True)
        return None

    def _unlock(self, forget: bool = False) -> None:
        if forget:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _window(self, warmup: int, total: int) -> Window:
        """The profiled steps: those asked for, or a few to see stock collectives by, or none."""
        config = self.config.run
        wanted = config.profile_steps if config.profile else _STOCK_WINDOW_STEPS * self._lacks_stock_bytes
        traces = self.traces if config.profile else None
        return Window(warmup + 1, min(wanted, total - warmup), traces, self.ranks.rank, self.done)

    @property
    def _lacks_stock_bytes(self) -> bool:
        """Is there traffic of FSDP2's own, and no profile yet that has seen how much?"""
        return self.comm.must_be_watched and self.ranks.world > 1

    def _observe(self, events: Iterable[Any]) -> None:
        """Hand the profiled window's stock collectives, all ranks', to whoever accounts for them; collective."""
        size = {"fp32": 4, "bf16": 2, "fp16": 2}
        itemsize: dict[Op, int] = {
            "reduce_scatter": size[self.config.comm.comm_dtype],
            "all_gather": size[self.record.noted["param_dtype"]],
        }
        self.comm.stock = StockTraffic(self.ranks.gather(stock_calls(events)), itemsize, self.ranks.backend)
        if self.window.trace is not None:
            self._read_profile(self.window.trace)

    def _read_profile(self, path: Path) -> None:
        """What this run's traces say; collective."""
        self.profile, complaint = read_profile(path, self.ranks)
        if self.profile is not None:
            self.note(**profile_row(self.profile))
            self.progress.record(self.window.last, self.profile.scalars())
        elif complaint is not None:
            self.progress.say(complaint)

    def _count_nonfinite(self, outcome: StepOutcome) -> None:
        self._loss_scale, self.is_void = outcome.loss_scale, not outcome.taken
        if outcome.loss_scale is not None and self.scaler_skipped_steps is None:
            self.scaler_skipped_steps = 0
        if outcome.taken:
            self._nonfinite_in_a_row = 0
            return
        self.comm.rollback()
        if outcome.loss_scale is not None and outcome.loss_scale > 1:  # that is how a scale is found to be too large
            self.scaler_skipped_steps = (self.scaler_skipped_steps or 0) + 1
            self.progress.say(f"step skipped: fp16 overflowed with a loss scale of {outcome.loss_scale:,.0f}; halved")
            return
        self.nonfinite_steps += 1
        self._nonfinite_in_a_row += 1
        self.progress.say(f"step skipped: a gradient is not finite ({self.nonfinite_steps} so far)")
        if self._nonfinite_in_a_row >= self.config.run.max_nonfinite_steps:
            raise FloatingPointError(f"{self._nonfinite_in_a_row} steps in a row with gradients that are not finite")

    def _is_time(self) -> bool:
        with self.wire.paused():
            return self.ranks.broadcast(self.goals.is_time(self.clock.train_seconds))

    def _sample_due(self, step: int) -> bool:
        """Is the gradient of this step compared with the exact one? Not where a profile would see it."""
        every = self.config.run.grad_error_every
        return every > 0 and step % every == 0 and self.comm.can_compare and not self.window.disturbs(step)

    def _take_sample(self) -> Sample | None:
        """What the step's comparison found, the same on all ranks; collective where there was one."""
        found = self.comm.end_comparison()
        if found is None:
            return None
        sample = Sample.of(self.ranks.gather(found))
        self.samples.add(sample)
        return sample

    def _log_due(self, step: int) -> bool:
        return step % self.config.run.log_interval == 0 or step == self.total_steps

    def _evaluated(self, step: int, evaluation: Evaluation) -> None:
        """Enter an evaluation, at the same time for all ranks: they must agree on what they still wait for."""
        with self.wire.paused():
            seconds = self.ranks.broadcast(self.clock.train_seconds)
        self.goals.saw(step, seconds, evaluation)
        self._add_to_curve(step, val_loss=evaluation.loss, val_ppl=evaluation.ppl)

    def _add_to_curve(self, step: int, **values: float | None) -> None:
        sent = self.comm.sent_bytes(step)
        seconds = None if self.ranks.are_virtual else self.clock.train_seconds
        self.curve.add(step=step, train_seconds=seconds, tokens=self._tokens, sent_bytes=sent, **values)

    def _report(
        self, step: int, outcome: StepOutcome, more: Callable[[], Mapping[str, float]]
    ) -> dict[str, float | None]:
        """Show the latest numbers; those of them that the curve keeps."""
        before, seconds_before, bytes_before = self._reported_at
        sent = self.comm.totals().sent_bytes
        seconds = self.clock.train_seconds
        scalars = {
            "train/loss": self._mean_loss(self.config.run.log_interval),
            "train/grad_norm": outcome.grad_norm,
            "train/learning_rate": outcome.learning_rate,
        }
        if not self._lacks_stock_bytes:
            scalars["comm/sent_bytes_per_step"] = (sent - bytes_before) / (step - before) + self.comm.stock.sent_bytes
        if outcome.loss_scale is not None:
            scalars["train/loss_scale"] = outcome.loss_scale
        if not self.ranks.are_virtual:
            tokens = math.fsum(self._tokens_in(s) for s in range(before + 1, step + 1))
            scalars["speed/tokens_per_s"] = tokens / (seconds - seconds_before)
        self._reported_at = (step, seconds, sent)
        with self.wire.paused():
            scalars |= more()
        self.progress.report(step, scalars | memory.scalars(self.ranks.device))
        return {"train_loss": scalars["train/loss"], "grad_norm": outcome.grad_norm}

    def _mean_loss(self, last: int) -> float:
        """Mean over ranks of the last steps' losses; collective."""
        return float(self.ranks.sum(torch.stack(self._losses[-last:]).mean())) / self.ranks.world


def _mean(rows: list[Any]) -> Any:
    """Ranks' equal-shaped rows as one: numbers are averaged, everything else must be alike."""
    first = rows[0]
    if isinstance(first, dict):
        return {key: _mean([row[key] for row in rows]) for key in first}
    if isinstance(first, bool) or not isinstance(first, int | float):
        return first
    mean = sum(rows) / len(rows)
    return round(mean) if isinstance(first, int) else mean
