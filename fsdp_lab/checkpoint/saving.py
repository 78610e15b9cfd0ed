"""What a run saves, when, and how another process goes on from it."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

import comm_compress as cc
from fsdp_lab.checkpoint import folder as on_disk
from fsdp_lab.checkpoint.checkpoints import Checkpoint, Checkpoints, Content
from fsdp_lab.checkpoint.folder import CheckpointError, Manifest
from fsdp_lab.checkpoint.protocols import Restored, SavedRun, Stateful, Training
from fsdp_lab.checkpoint.rng import rng_state, set_rng_state
from fsdp_lab.models import Sharded
from fsdp_lab.ranks.preempt import Preempted
from fsdp_lab.settings.config import AnyTraining
from fsdp_lab.training.communication import Communication

FOLDER = "checkpoints"
NOT_BEGUN = "not_begun"
"""A file in a run's folder until its first step: nothing is lost when the run begins again."""
_LEAVING_S = 10  # that a failed run waits for a save under way


def may_resume(run_folder: Path, config: AnyTraining) -> bool:
    """Is this the folder of an unfinished run that can be gone on with, and is that wanted; or of one not begun?"""
    checkpoints = run_folder / FOLDER
    if (run_folder / NOT_BEGUN).exists():
        return True
    return config.run.resume != "never" and checkpoints.is_dir() and not (checkpoints / on_disk.FINISHED).exists()


def newest_step(run_folder: Path) -> int | None:
    """How many steps the newest checkpoint on the disk has; None when there is none. Not collective."""
    found = on_disk.found_in(run_folder / FOLDER)
    return found[0][0] if found else None


class Saving:
    """The checkpoints of one run: when they are saved, what is in them, and how another process goes on from one.

    A checkpoint is the state after a step's update and log line, before its evaluation: that is made again.
    ``data`` and ``also`` (what else there is to go on from) are states of each process.
    """

    def __init__(
        self,
        run: SavedRun,
        model: Sharded[Any],
        optimizer: AdamW,
        schedule: LambdaLR,
        data: Stateful,
        comm: Communication,
        also: Stateful | None = None,
    ) -> None:
        self._run, self._model, self._optimizer, self._schedule = run, model, optimizer, schedule
        self._data, self._comm, self._also, self._config = data, comm, also, run.config.run
        self._checkpoints = Checkpoints(
            run.folder / FOLDER, run.ranks, self._config.keep_checkpoints, _settings(run.config), run.say
        )
        self._before = {"saves": 0, "failed_saves": 0, "save_exposed_s": 0.0}
        self._resumed_at: list[int] = []  # the steps after which a process went on
        run.ask_at_the_end(self._row)
        if self._config.save_steps or self._config.save_on_stop:
            self._checkpoints.connect()
        if self._config.save_steps and run.ranks.is_first:
            (run.folder / FOLDER).mkdir(exist_ok=True)  # a run killed before its first checkpoint may begin again

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

    def row(self) -> dict[str, Any]:
        """The fields of a results row, of the whole training; waits for a save under way."""
        self._run.passed("save")
        self._checkpoints.wait()
        return self._row()

    def finished(self) -> None:
        """The run has ended well: never resume it."""
        folder = self._run.folder / FOLDER
        if self._run.ranks.is_first and folder.is_dir():
            on_disk.write(folder / on_disk.FINISHED, b"")

    def _last_save(self, training: Training) -> None:
        """All ranks stand at the end of the same step and are about to leave; schedulers give them about 30 s."""
        start, step = time.perf_counter(), training.done
        self._checkpoints.wait()
        if self._config.save_on_stop and step > 0 and self._checkpoints.newest != step:
            self._save(training)
            self._checkpoints.wait()
        if self._checkpoints.newest == step:
            took = time.perf_counter() - start
            self._run.say(
                f"step {step} is saved (in {took:.1f} s); --run_name {self._run.folder.name} goes on from there"
            )

    def _row(self) -> dict[str, Any]:
        done = self._checkpoints
        if not (self._config.save_steps or done.saved or done.failed or self._resumed_at):
            return {}
        return {**self._so_far(), "saved_step": done.newest, "resumed_at_steps": self._resumed_at}

    def _so_far(self) -> dict[str, Any]:
        """Counts and seconds of this process and of those before it."""
        done = self._checkpoints
        here = {"saves": done.saved, "failed_saves": done.failed, "save_exposed_s": done.exposed_s}
        return {name: self._before[name] + value for name, value in here.items()}

    # ---- what is in it --------------------------------------------------------------------------------------

    def _save(self, training: Training) -> None:
        if training.done == training.total_steps and self._comm.must_be_watched:
            return  # a run that only ends has no step left to see stock collectives in
        self._run.passed("save")
        self._checkpoints.wait()  # before the counts are taken
        with training.paused():
            self._checkpoints.save(training.done, Content(self._tensors(), self._own(training)))
            if self._run.ranks.link is not None:  # nothing of a save may go over a link that counts
                self._checkpoints.wait()

    def _tensors(self) -> dict[str, Tensor]:
        """Model and optimizer; these very tensors, not copies. The optimizer has none before its first update."""
        model = self._model.updated
        found = {f"model.{name}": value for name, value in get_model_state_dict(model).items()}
        if self._optimizer.state:  # asked for it, torch would make one, which an update that is still to come would see
            found |= self._optimizer_tensors()
        return found

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        state = get_optimizer_state_dict(self._model.updated, self._optimizer, options=options)
        return {f"optimizer.{name}": value for name, value in state.items() if isinstance(value, Tensor)}

    def _own(self, training: Training) -> dict[str, Any]:
        counts = self._comm.state_dict()
        return {
            "compressors": counts.pop("compressors"),
            "counts": counts,
            "data": json.dumps(self._data.state_dict()),  # its numbers may be longer than a tensor file takes
            "also": json.dumps(self._also.state_dict() if self._also else {}),
            "has_optimizer": bool(self._optimizer.state),
            "schedule": self._schedule.last_epoch,
            "rng": rng_state(self._run.ranks.device),
            "run": training.state_dict() | {"resumed_at": self._resumed_at},
            "saving": self._so_far() | {"saves": self._so_far()["saves"] + 1},  # who loads this one has it
        }

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
        self._check_settings(checkpoint.manifest)
        own = self._checkpoints.load_own(checkpoint)
        rank, alike = self._run.ranks.rank, len(own) == 1 and checkpoint.manifest.world == self._run.ranks.world
        mine = own[0] if alike else own[rank % len(own)]
        self._load(checkpoint, mine, own, alike)
        self._checkpoints.forget_after(step)
        self._checkpoints.newest = step
        self._before |= mine["saving"]
        self._resumed_at = [*mine["run"]["resumed_at"], step]
        self._run.say(f"resumed from {checkpoint.path}: {step} steps are done")
        return Restored(step, mine["run"])

    def _load(self, checkpoint: Checkpoint, mine: dict[str, Any], own: list[dict[str, Any]], alike: bool) -> None:
        tensors = {f"model.{name}": value for name, value in get_model_state_dict(self._model.updated).items()}
        if mine["has_optimizer"]:
            tensors |= self._optimizer_tensors()
        self._or_anew("data", lambda: self._data.load_state_dict(json.loads(mine["data"])))
        if self._also is not None:
            self._also.load_state_dict(json.loads(mine["also"]))
        self._or_anew("compressors", lambda: self._load_compressors(mine, own, alike))
        self._comm.load_counts(mine["counts"], checkpoint.manifest.step)
        self._checkpoints.load_tensors(checkpoint, tensors)  # in place: FSDP2's shards and the optimizer's own tensors
        self._set_schedule(mine["schedule"])
        if alike:
            set_rng_state(mine["rng"], self._run.ranks.device)

    def _chosen(self) -> Checkpoint | None:
        own = self._checkpoints.folder.resolve()
        path = None if self._config.resume in ("auto", "never") else Path(self._config.resume).resolve()
        if path is not None and own in path.parents:
            return self._checkpoints.at(path)
        if self._run.is_resumed and (newest := self._checkpoints.latest()) is not None:
            return newest  # also where the run once began from another one's checkpoint
        return None if path is None else self._checkpoints.at(path)

    def _check_settings(self, manifest: Manifest) -> None:
        ranks, config = self._run.ranks, self._run.config
        ignored = set()
        if manifest.world != ranks.world:
            if not self._config.resume_resharded:
                raise CheckpointError(
                    f"resume: the checkpoint is of {manifest.world} ranks, these are {ranks.world}; "
                    "--resume_resharded true goes on nevertheless, not bit for bit"
                )
            batch = config.optim.batch_size
            assert batch is not None, "resolved"
            if manifest.settings.get("batch_size", 0) * manifest.world == batch * ranks.world:
                ignored = {"batch_size"}  # the same global batch
        now = _settings(config)
        defaults = {name: spec.default for name, spec in config.specs().items()}
        before = {name: manifest.settings.get(name, defaults[name]) for name in now}
        changed = [f"{k}: was {before[k]!r}, is {now[k]!r}" for k in now if before[k] != now[k] and k not in ignored]
        if changed and not self._config.resume_changed:
            raise CheckpointError(
                "resume: settings that affect the training have changed; --resume_changed true goes on nevertheless\n"
                + "\n".join(f"  {line}" for line in changed)
            )
        for line in changed:
            self._run.say(f"resume: changed: {line}")
        if manifest.torch != torch.__version__:
            self._run.say(
                f"resume: saved by torch {manifest.torch}, this is {torch.__version__}: perhaps not bit for bit"
            )

    def _or_anew(self, what: str, load: Any) -> None:
        """Load, or say why ``what`` starts afresh where the user allowed changes."""
        try:
            load()
        except ValueError as error:
            if not self._config.resume_changed:
                raise
            self._run.say(f"{what} start afresh: {error}")

    def _load_compressors(self, mine: dict[str, Any], own: list[dict[str, Any]], alike: bool) -> None:
        states = mine["compressors"]
        if not alike:
            ranks = self._run.ranks
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                every = [state for process in own for state in process["compressors"]]
                states = cc.reshard(every, ranks.world, keep="mean")[ranks.rank : ranks.rank + ranks.played]
            for line in said:
                self._run.say(f"resume: {line.message}")
        device = self._run.ranks.device
        self._comm.load_compressors([{key: _on(device, entry) for key, entry in of_rank.items()} for of_rank in states])

    def _set_schedule(self, step: int) -> None:
        """The learning rates of this run's own settings after ``step`` steps."""
        schedule = self._schedule
        rates = [base * factor(step) for base, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        schedule.load_state_dict(schedule.state_dict() | {"last_epoch": step, "_last_lr": rates})


def _on(device: torch.device, entry: dict[str, Any]) -> dict[str, Any]:
    """A compressor's saved state with its tensors where they are used."""
    return entry | {"tensors": {name: tensor.to(device) for name, tensor in entry["tensors"].items()}}


def _settings(config: AnyTraining) -> dict[str, Any]:
    """Those that affect the training, by name."""
    specs = config.specs()
    return {name: value for name, value in config.resolved().items() if specs[name].affects_training}
