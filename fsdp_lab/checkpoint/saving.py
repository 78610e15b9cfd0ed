"""When a run saves, and how another process goes on from what it saved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fsdp_lab.checkpoint.checkpoints import Checkpoints
from fsdp_lab.checkpoint.files import folder as on_disk
from fsdp_lab.checkpoint.files.content import Content
from fsdp_lab.checkpoint.files.reading import Checkpoint
from fsdp_lab.checkpoint.protocols import Restored, SavedRun, Stateful, Training
from fsdp_lab.checkpoint.same_training import check_training, training_settings
from fsdp_lab.checkpoint.state import TrainingState
from fsdp_lab.checkpoint.unfinished import FOLDER
from fsdp_lab.models import Sharded
from fsdp_lab.ranks.preempt import Preempted
from fsdp_lab.training.communication import Communication

_LEAVING_S = 10  # that a failed run waits for a save under way


class Saving:
    """The checkpoints of one run: saved now and then and when the run is told to stop; the newest is gone on from.

    A checkpoint is the state after a step's update and log line, before its evaluation: that is made again.
    ``data`` and ``also`` (what else there is to go on from) are states of each process.
    """

    def __init__(
        self,
        run: SavedRun,
        model: Sharded[Any],
        optimizer: Optimizer,
        schedule: LambdaLR,
        data: Stateful,
        comm: Communication,
        also: Stateful | None = None,
    ) -> None:
        self._run, self._config, self._comm = run, run.config.run, comm
        self._state = TrainingState(run, model, optimizer, schedule, data, comm, also)
        folder, settings = run.folder / FOLDER, training_settings(run.config)
        self._checkpoints = Checkpoints(folder, run.ranks, self._config.keep_checkpoints, settings, run.say)
        self._before = {"saves": 0, "failed_saves": 0, "save_exposed_s": 0.0}  # by earlier processes
        self._resumed_at: list[int] = []  # the steps after which a process went on
        run.ask_at_the_end(self._row)
        if self._config.save_steps or self._config.save_on_stop:
            self._checkpoints.connect()
        if self._config.save_steps and run.ranks.is_first:
            folder.mkdir(exist_ok=True)  # a run killed before its first checkpoint may begin again

    # ---- going on -------------------------------------------------------------------------------------------

    def restore_latest(self) -> Restored | None:
        """Load the newest sound checkpoint, if the run is to be resumed; None: it begins with the first step.

        CheckpointError or ConfigError says what keeps it from going on; then nothing has changed on the disk.
        """
        self._run.passed("save")
        checkpoint = self._chosen()
        if checkpoint is None:
            if self._run.is_resumed:
                self._run.say("no checkpoint was saved before: from the first step")
            return None
        step = checkpoint.manifest.step
        check_training(checkpoint.manifest, self._run.config, self._run.ranks, self._run.say)
        own = self._state.load(self._checkpoints.reader, checkpoint)
        self._checkpoints.reader.forget_after(step)
        self._checkpoints.newest = step
        self._before |= own["saving"]
        self._resumed_at = [*own["run"]["resumed_at"], step]
        self._run.say(f"resumed from {checkpoint.path}: {step} steps are done")
        return Restored(step, own["run"])

    def _chosen(self) -> Checkpoint | None:
        reader, own = self._checkpoints.reader, self._checkpoints.folder.resolve()
        path = None if self._config.resume in ("auto", "never") else Path(self._config.resume).resolve()
        if path is not None and own in path.parents:
            return reader.at(path)
        if self._run.is_resumed and (newest := reader.latest()) is not None:
            return newest  # also where the run once began from another one's checkpoint
        return None if path is None else reader.at(path)

    # ---- saving ---------------------------------------------------------------------------------------------

    def after_step(self, training: Training) -> None:
        """Save when it is time, and report what was saved meanwhile. A step that was void is no time to save."""
        self._checkpoints.poll()
        every = self._config.save_steps
        if every and training.done % every == 0 and not training.is_void:
            self._save(training)

    @contextmanager
    def on_stop(self, training: Training) -> Iterator[None]:
        """When the run is told to stop inside, one more checkpoint is saved; on another error, one under way ends."""
        try:
            yield
        except BaseException as error:
            self._run.passed("save")
            if isinstance(error, Preempted) and error.is_agreed:
                self._last_save(training)
            else:
                self._checkpoints.wait(_LEAVING_S)
            raise

    def finished(self) -> None:
        """Note on the disk that the run has ended well, so that it is never resumed."""
        folder = self._run.folder / FOLDER
        if self._run.ranks.is_first and folder.is_dir():
            on_disk.write(folder / on_disk.FINISHED, b"")

    def _save(self, training: Training) -> None:
        if training.done == training.total_steps and self._comm.must_be_watched:
            return  # a run that only ends has no step left to see stock collectives in
        self._run.passed("save")
        self._checkpoints.wait()  # before the counts are taken
        with training.paused():
            self._checkpoints.save(
                training.done, Content(self._state.tensors(), self._own(training), self._state.pieces())
            )
            if self._run.ranks.link is not None:  # nothing of a save may go over a link that counts
                self._checkpoints.wait()

    def _last_save(self, training: Training) -> None:
        """All ranks stand at the end of the same step and are about to leave; schedulers give them about 30 s."""
        start, step = time.perf_counter(), training.done
        self._checkpoints.wait()
        if self._config.save_on_stop and step > 0 and self._checkpoints.newest != step:
            self._save(training)
            self._checkpoints.wait()
        if self._checkpoints.newest == step:
            took, name = time.perf_counter() - start, self._run.folder.name
            self._run.say(f"step {step} is saved (in {took:.1f} s); --run_name {name} goes on from there")

    def _own(self, training: Training) -> dict[str, Any]:
        """What this process alone has, and no other rank could tell it."""
        counts = self._counts()
        return {
            **self._state.own(),
            "run": training.state_dict() | {"resumed_at": self._resumed_at},
            "saving": counts | {"saves": counts["saves"] + 1},  # who loads this one has it
        }

    # ---- the row --------------------------------------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        """The fields of a results row, of the whole training; waits for a save under way."""
        self._run.passed("save")
        self._checkpoints.wait()
        return self._row()

    def _row(self) -> dict[str, Any]:
        done = self._checkpoints
        if not (self._config.save_steps or done.saved or done.failed or self._resumed_at):
            return {}
        return {**self._counts(), "saved_step": done.newest, "resumed_at_steps": self._resumed_at}

    def _counts(self) -> dict[str, Any]:
        """Counts and seconds of this process and of those before it."""
        done = self._checkpoints
        here = {"saves": done.saved, "failed_saves": done.failed, "save_exposed_s": done.exposed_s}
        return {name: self._before[name] + value for name, value in here.items()}
