"""Writing one checkpoint: the ranks take each step of it together, and what fails on one of them has failed on all."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from fsdp_lab.checkpoint.files import folder as on_disk
from fsdp_lab.checkpoint.files.content import WEIGHTS, Content, own_name
from fsdp_lab.checkpoint.files.folder import CheckpointError, Manifest
from fsdp_lab.files import disk
from fsdp_lab.ranks import faults
from fsdp_lab.ranks.distributed import Ranks

T = TypeVar("T")
_ATTEMPTS, _PAUSE_S = 3, 1.0
_TRANSIENT = {errno.EIO, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ESTALE, errno.EBUSY}
_GROUP_TIMEOUT = timedelta(minutes=30)  # a slow disk is no dead rank; the training's own collectives find those


class _SaveError(Exception):
    """A save failed, for the same reason on every rank."""

    def __init__(self, reason: str, is_transient: bool) -> None:
        super().__init__(reason)
        self.is_transient = is_transient


class Writer:
    """Writes checkpoints into ``folder`` and keeps the newest ``keep``; ``settings`` are what a manifest says of them.

    It may run in a thread beside the training: there the ranks talk over a process group that is not the training's.
    """

    def __init__(self, folder: Path, ranks: Ranks, keep: int, settings: dict[str, Any]) -> None:
        self._folder, self._ranks, self._keep, self._settings = folder, ranks, keep, settings
        self._group: dist.ProcessGroup | None = None

    def connect(self) -> None:
        """Make that process group; collective. Early, as the launcher, whose store the ranks meet in, may die later."""
        if self._group is None:
            self._group = dist.new_group(backend="gloo", timeout=_GROUP_TIMEOUT)

    def write(self, step: int, content: Content) -> str | None:
        """Write a checkpoint; why that failed, the same on all ranks, or None. A transient failure is tried again."""
        unfinished = self._folder / f"{on_disk.name_of(step)}.tmp"
        try:
            attempt = 1
            while True:
                try:
                    self._attempt(step, content, unfinished)
                    return None
                except _SaveError as failure:
                    self._clear()
                    if attempt == _ATTEMPTS or not failure.is_transient:
                        return str(failure)
                time.sleep(_PAUSE_S * attempt)
                attempt += 1
        except BaseException as error:  # a broken connection, or our own mistake: never the end of the training
            return f"{type(error).__name__}: {error}"

    def _attempt(self, step: int, content: Content, unfinished: Path) -> None:
        if bad := [name for names in self._agreed(content.not_finite) for name in names]:
            raise _SaveError(f"not finite: {', '.join(bad[:3])}", is_transient=False)
        self._agreed(lambda: self._on_first(lambda: self._make(unfinished)))
        self._agreed(lambda: self._save_tensors(unfinished, content.placed, step))
        self._agreed(lambda: _save_own(unfinished / own_name(self._ranks.rank), content.own, step))
        entries = self._agreed(lambda: [on_disk.entry_of(unfinished, name) for name in self._written(unfinished)])
        files = tuple(entry for of_process in entries for entry in of_process)
        manifest = Manifest(step, self._ranks.world, torch.__version__, self._settings, files)
        self._agreed(lambda: self._on_first(lambda: _finish(unfinished, manifest)))
        # read back, before an older checkpoint goes
        self._agreed(lambda: _require(on_disk.complaints(unfinished, self._ranks.share(files))))
        self._agreed(lambda: self._on_first(lambda: _publish(unfinished, step)))
        self._agreed(lambda: self._on_first(lambda: on_disk.prune(self._folder, self._keep)))

    def _agreed(self, act: Callable[[], T]) -> list[T]:
        """What ``act`` gave on every process; _SaveError on all of them when it failed on any."""
        mine, problem = None, None
        try:
            mine = act()
        except OSError as error:
            text = f"{error.filename or self._folder}: {error.strerror or error}"
            problem = (text, error.errno in _TRANSIENT)
        except CheckpointError as error:
            problem = (str(error), False)
        except Exception as error:  # whatever it is: a rank that left here would have the others wait for it
            problem = (f"{type(error).__name__}: {error}", False)
        by_rank: list[Any] = [None] * self._ranks.processes
        dist.all_gather_object(by_rank, (mine, problem), group=self._group)
        problems = [(rank, *problem) for rank, (_, problem) in enumerate(by_rank) if problem is not None]
        if problems:
            reasons = "; ".join(f"rank {rank}: {text}" for rank, text, _ in problems)
            raise _SaveError(reasons, all(is_transient for *_, is_transient in problems))
        return [value for value, _ in by_rank]

    def _make(self, unfinished: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        on_disk.sweep(self._folder)
        (unfinished / WEIGHTS).mkdir(parents=True)

    def _clear(self) -> None:
        """Nothing of a failed save stays, above all not where the disk is full."""
        dist.barrier(group=self._group)
        if self._ranks.is_first:
            on_disk.sweep(self._folder)
        dist.barrier(group=self._group)

    def _save_tensors(self, unfinished: Path, tensors: dict[str, Tensor], step: int) -> None:
        """Collective; OSError on every rank when a disk does not take it."""
        folder = unfinished / WEIGHTS
        faults.at("weights", step=step, path=folder / f"__{self._ranks.rank}_0.distcp")
        try:
            dcp.save(tensors, storage_writer=disk.checkpoint_writer(folder), process_group=self._group)
        except dcp.CheckpointException as error:
            reasons = [failure for failure, _ in error.failures.values()]
            for reason in reasons:
                if isinstance(reason, OSError):
                    raise OSError(reason.errno, reason.strerror, reason.filename) from None
            raise CheckpointError(f"{type(reasons[0]).__name__}: {reasons[0]}") from None

    def _written(self, unfinished: Path) -> list[str]:
        """The names of the files that this process has written."""
        names = [path.name for path in (unfinished / WEIGHTS).glob(f"__{self._ranks.rank}_*")]
        names += [".metadata"] if self._ranks.rank == 0 else []
        return [own_name(self._ranks.rank), *(f"{WEIGHTS}/{name}" for name in sorted(names))]

    def _on_first(self, act: Callable[[], Any]) -> None:
        if self._ranks.is_first:
            act()


def _save_own(path: Path, own: dict[str, Any], step: int) -> None:
    faults.at("save", step=step, path=path)
    with disk.writing(path) as file:
        torch.save(own, file)
    on_disk.flush(path)


def _finish(unfinished: Path, manifest: Manifest) -> None:
    faults.at("manifest", step=manifest.step, path=unfinished / on_disk.MANIFEST)
    on_disk.write(unfinished / on_disk.MANIFEST, manifest.to_bytes())
    on_disk.flush(unfinished / WEIGHTS)
    on_disk.flush(unfinished)
    Manifest.read(unfinished)


def _publish(unfinished: Path, step: int) -> None:
    faults.at("rename", step=step)
    on_disk.publish(unfinished)


def _require(complaints: list[str]) -> None:
    if complaints:
        raise CheckpointError("; ".join(complaints))
