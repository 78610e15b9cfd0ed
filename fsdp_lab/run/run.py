"""One training run: who takes part, where it writes, what it says, and the row that every way out leaves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from fsdp_lab.checkpoint import NOT_BEGUN
from fsdp_lab.measure.profiling import phase
from fsdp_lab.ranks import faults
from fsdp_lab.ranks.distributed import Ranks, agree, join
from fsdp_lab.ranks.preempt import Preempted, RankLostError
from fsdp_lab.run.display.progress import Progress
from fsdp_lab.run.ending import Ending
from fsdp_lab.run.record import Record
from fsdp_lab.run.storage.curve import Curve
from fsdp_lab.run.storage.folder import held, name_of, writing_model
from fsdp_lab.run.storage.paths import Paths
from fsdp_lab.run.trackers.choice import Trackers
from fsdp_lab.run.trackers.protocol import Status
from fsdp_lab.settings.config import AnyTraining
from fsdp_lab.settings.methods import check_compression


class Run:
    """What a run has from its start to its end, neither model nor data. Its optimizer steps are a `Loop`."""

    def __init__(self, config: AnyTraining, ranks: Ranks, record: Record, is_resumed: bool) -> None:
        self.config, self.ranks, self.record = config, ranks, record
        self.name, self.paths = record.name, record.paths
        self.note, self.ask_at_the_end = record.note, record.ask_at_the_end
        self.is_resumed = is_resumed
        """Has the run's folder been there, with what an earlier process left?"""
        self.curve = Curve(self.paths.curve if ranks.is_first else None)
        self.progress = Progress(speaks=ranks.is_first)
        self.trackers = Trackers((), self.name, self.paths.events, {}, 0)
        """Those that were asked for, from when training begins."""
        self.say = self.progress.say
        """A line from rank 0."""
        self.ending = Ending(record, config, ranks)
        self.stop, self.watchdog = self.ending.stop, self.ending.watchdog
        self.has_begun = False
        """Has training begun? Until then what goes wrong is the settings' fault."""
        self.closing = ExitStack()
        """What is to be closed however the run ends."""

    @classmethod
    @contextmanager
    def start(cls, config: AnyTraining, model: str = "final_model") -> Iterator[Run]:
        """Join the ranks, agree with them, hold the run's folder, and leave a row whichever way the run ends.

        ``config`` must leave nothing open (`fsdp_lab.settings.models.presets.resolve`). ``model``: the name of the
        folder for what is trained.
        """
        check_compression(config.comm, config.optim.optimizer)
        with join(config) as ranks:
            agree(config, ranks)
            injected = faults.arm(ranks.rank)
            name = ranks.broadcast(name_of(config, model))
            record = Record(config, ranks, name, Paths.of(config.run, name, model))
            record.note(injected_fault=injected)
            with held(record.paths, config, ranks) as is_resumed:
                run = cls(config, ranks, record, is_resumed)
                run._introduce()
                with run._recorded():
                    yield run
            if run.ending.unwritten is not None:  # all else went well
                raise run.ending.unwritten

    def begin(self, total_steps: int, done: int) -> None:
        """Training begins, or goes on after ``done`` of ``total_steps`` steps."""
        self.has_begun = True
        if self.ranks.is_first:
            (self.folder / NOT_BEGUN).unlink(missing_ok=True)
        self.curve.rewind(done)
        if self.ranks.is_first:
            names, values = self.config.run.tracker_names, self.config.resolved()
            self.trackers = Trackers(names, self.name, self.paths.events, values, done)
        self.progress.begin(total_steps, self.trackers.log, done)

    @property
    def folder(self) -> Path:
        """The run's own folder, which has the name of the run."""
        return self.paths.folder

    # ---- where it stands ------------------------------------------------------------------------------------

    def passed(self, point: str) -> None:
        """Tell the watchdog that the run has come to ``point``."""
        self.watchdog.passed(point)

    def at(self, point: str, step: int | None = None) -> None:
        """Pass a point at which a fault may be injected; ``step`` is the one that begins, if one does."""
        self.watchdog.passed(point, step)
        faults.at(point, step=step)

    @contextmanager
    def phase(self, name: Literal["forward", "backward", "optimizer"]) -> Iterator[None]:
        """Name a phase of a step, for whoever reads the profile or asks where a rank stands."""
        self.at(name)
        with phase(name):
            yield

    @contextmanager
    def saving_model(self) -> Iterator[None]:
        """While what was trained is written to `Paths.model`. OSError where the disk does not take it."""
        self.passed("model")
        with writing_model(self.paths, self.ranks):
            yield

    def check_while_reading(self) -> None:
        """Called again and again while the data are tokenised or waited for; raises `Preempted`."""
        self.at("tokenize")
        self.stop.check()

    def after_validation_batch(self) -> None:
        """Called by all ranks after each of their validation batches; raises `Preempted`; collective."""
        self.at("validate")
        self.stop.agree()

    # ---- how it starts and ends -----------------------------------------------------------------------------

    def _introduce(self) -> None:
        ranks = self.ranks
        where = "all in this process" if ranks.are_virtual else ranks.backend
        self.say(f"run {self.name}: world size {ranks.world}, {where}, {ranks.device.type}")
        self.say("".join(f"  {line}\n" for line in self.config.to_yaml().splitlines()))

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """An error inside ends the run with a row, or, before training begins, with neither row nor folder."""
        status: Status = "failed"
        try:
            yield
            status = "ok"
        except ValueError as error:
            if self.has_begun:  # by now it is our mistake, not the user's
                self.ending.failed(error)
                raise RuntimeError(f"training failed: {error}") from error
            self.ending.refused(str(error))
            self._forget()
            raise
        except BaseException as error:
            lost = self.ending.failed(error)
            if lost is not None:
                raise RankLostError(lost, is_said=self.ending.say_at_once(lost)) from error
            if isinstance(error, Preempted):
                status = "preempted"
            raise
        finally:
            self.ending.over()
            self.progress.leave_bar()  # however it ended, the last words are not written behind a bar
            self.watchdog.close()
            self.trackers.finish(status)
            self.closing.close()

    def _forget(self) -> None:
        """The settings were refused before training began: leave the name free and no row."""
        if self.ranks.is_first and not self.is_resumed:
            shutil.rmtree(self.folder, ignore_errors=True)
