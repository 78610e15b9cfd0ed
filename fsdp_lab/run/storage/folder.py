"""A run's folder is held by one process at a time: what must be true of it before the run may write there."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from fsdp_lab import results
from fsdp_lab.checkpoint import NOT_BEGUN, may_resume
from fsdp_lab.files import disk
from fsdp_lab.ranks import faults
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.run.storage.lock import RunLock
from fsdp_lab.run.storage.paths import Paths
from fsdp_lab.settings.config import AnyTraining, default_run_name
from fsdp_lab.settings.reading.fields import ConfigError


def name_of(config: AnyTraining, model: str) -> str:
    """The run's name: as asked for, else one that no other run has; runs may begin within one second.

    ``model``: the name of the folder for what is trained.
    """
    if config.run.run_name is not None:
        return config.run.run_name
    first = default_run_name(config.comm.comm_compress, config.trained)
    names = itertools.chain([first], (f"{first}_{number}" for number in itertools.count(2)))
    return next(name for name in names if not _is_taken(Paths.of(config.run, name, model)))


def _is_taken(paths: Paths) -> bool:
    return paths.folder.exists() or paths.curve.exists()


@contextmanager
def held(paths: Paths, config: AnyTraining, ranks: Ranks) -> Iterator[bool]:
    """Hold the folder while inside; collective. Gives whether it holds an unfinished run, which this one goes on with.

    ConfigError on every rank where the folder is another run's, or cannot be written.
    """
    lock, is_resumed, complaint = _hold(paths, config) if ranks.is_first else (None, False, None)
    is_resumed, complaint = ranks.broadcast((is_resumed, complaint))
    if complaint is not None:
        raise ConfigError([complaint])
    try:
        yield is_resumed
    finally:
        if lock is not None:
            lock.release()


def _hold(paths: Paths, config: AnyTraining) -> tuple[RunLock | None, bool, str | None]:
    """Rank 0's part: the lock, whether there is a run to go on with, and what went wrong, for all ranks to say."""
    try:
        results.ensure_appendable(paths.results)
        lock = RunLock(paths.folder)
        try:
            return lock, _prepare(paths, config, lock.is_new), None
        except BaseException:
            if lock.is_new:
                shutil.rmtree(paths.folder, ignore_errors=True)
            lock.release()
            raise
    except ValueError as error:  # names results_path or run_name
        return None, False, str(error)
    except OSError as error:
        where = error.filename or paths.folder
        return None, False, f"output_dir, curves_dir: cannot write {where}: {error.strerror}"


def _prepare(paths: Paths, config: AnyTraining, is_new: bool) -> bool:
    """Write what a run begins with; answers whether it goes on. ValueError where another run has been here."""
    is_resumed = not is_new and may_resume(paths.folder, config)
    if not is_resumed:
        taken = ([] if is_new else [paths.folder]) + ([paths.curve] if paths.curve.exists() else [])
        if taken:
            raise ValueError(f"run_name: {taken[0]} exists already; choose another name (or none)")
        (paths.folder / NOT_BEGUN).touch()  # first of all: killed from here on, the same command begins again
    paths.settings.write_text(config.to_yaml())
    paths.curve.parent.mkdir(parents=True, exist_ok=True)
    return is_resumed


@contextmanager
def writing_model(paths: Paths, ranks: Ranks) -> Iterator[None]:
    """While `Paths.model` is written. OSError where the disk does not take it; half a model does not stay then."""
    was_there = paths.model.exists()
    faults.at("model", path=paths.model / "config.json", writes=ranks.is_first)
    try:
        with disk.refusals(paths.model):
            yield
    except OSError:
        if ranks.is_first and not was_there:
            shutil.rmtree(paths.model, ignore_errors=True)
        raise
