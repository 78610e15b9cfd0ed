"""Saving in the background and loading with verification: the collective part of checkpoints."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

from fsdp_lab.checkpoint import folder as on_disk
from fsdp_lab.checkpoint.folder import CheckpointError, FileEntry, Manifest
from fsdp_lab.checkpoint.safe_load import TensorPlanner, TensorReader, load_own, why_refused
from fsdp_lab.files import disk
from fsdp_lab.ranks import faults
from fsdp_lab.ranks.distributed import Ranks

T = TypeVar("T")
_WEIGHTS = "weights"
_STAGES_ONCE = torch.__version__ < "2.13"  # its stager then forgets how to copy what is no tensor
_ATTEMPTS, _PAUSE_S = 3, 1.0
_TRANSIENT = {errno.EIO, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ESTALE, errno.EBUSY}
_GROUP_TIMEOUT = timedelta(minutes=30)  # a slow disk is no dead rank; the training's own collectives find those


@dataclass
class Content:
    """What a checkpoint holds.

    ``tensors``: by name, DTensors (each rank has a part) and tensors that are alike on all ranks; they can be loaded on
    another number of ranks. ``own``: this process's alone, nested dicts and lists of plain values and tensors.
    """

    tensors: dict[str, Tensor]
    own: dict[str, Any]


class Checkpoint(NamedTuple):
    """A checkpoint that was found sound, and its manifest."""

    path: Path
    manifest: Manifest


class _SaveError(Exception):
    """A save failed, for the same reason on every rank."""

    def __init__(self, reason: str, is_transient: bool) -> None:
        super().__init__(reason)
        self.is_transient = is_transient


class Checkpoints:
    """The checkpoints of one run in ``folder``, which all ranks must see; the newest ``keep`` of them stay.

    ``settings``: what a manifest says of the training. ``say`` gets lines for the user, on every rank.
    A save costs the training the time to copy the state (`exposed_s`); a thread writes the copy, and talks to the other
    ranks' threads over a process group of its own. A save that fails is reported, leaves nothing, and is counted
    (`failed`): training goes on. Every method is collective but `poll`.
    """

    def __init__(
        self, folder: Path, ranks: Ranks, keep: int, settings: dict[str, Any], say: Callable[[str], None]
    ) -> None:
        self.folder, self._ranks, self._keep, self._settings, self._say = folder, ranks, keep, settings, say
        self.exposed_s = 0.0
        self.saved = self.failed = 0
        self.newest: int | None = None
        self._group: dist.ProcessGroup | None = None
        self._stager: DefaultStager | None = None
        self._thread: threading.Thread | None = None
        self._step = 0
        self._failure: str | None = None
        self._damaged: set[Path] = set()

    # ---- saving ---------------------------------------------------------------------------------------------

    def save(self, step: int, content: Content) -> None:
        """Copy the state after ``step`` steps; it is written in the background. Waits for a save under way first."""
        self.wait()
        start = time.perf_counter()
        self._prepare()
        assert self._stager is not None
        copy = self._stager.stage({"tensors": content.tensors, "own": content.own})
        assert isinstance(copy, dict)
        self._step, self._failure = step, None
        self._thread = threading.Thread(
            target=self._write, args=(step, Content(**copy)), daemon=True, name=f"checkpoint {step}"
        )
        self._thread.start()
        self.exposed_s += time.perf_counter() - start

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is being written, or for ``timeout_s`` seconds."""
        if self._thread is not None:
            start = time.perf_counter()
            self._thread.join(timeout_s)
            self.exposed_s += time.perf_counter() - start
            self.poll()

    def poll(self) -> None:
        """Report a save that has ended meanwhile, if one has."""
        if self._thread is None or self._thread.is_alive():
            return
        self._thread = None
        if self._failure is None:
            self.saved, self.newest = self.saved + 1, self._step
        else:
            self.failed += 1
            last = "there is none before it" if self.newest is None else f"the last good one is of step {self.newest}"
            self._say(f"checkpoint of step {self._step} not saved: {self._failure}; {last}")

    def connect(self) -> None:
        """Make the threads' process group, early: the launcher, whose store the ranks meet in, may die later."""
        if self._group is None:
            self._group = dist.new_group(backend="gloo", timeout=_GROUP_TIMEOUT)

    def _prepare(self) -> None:
        """Make what only runs that save need."""
        self.connect()
        if self._stager is None or _STAGES_ONCE:
            on_cuda = self._ranks.device.type == "cuda"
            self._stager = DefaultStager(StagingOptions(on_cuda, False, False, on_cuda))

    def _write(self, step: int, content: Content) -> None:
        """Write a copy of the state, in the background thread; a transient failure is tried again."""
        unfinished = self.folder / f"{on_disk.name_of(step)}.tmp"
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    self._attempt(step, content, unfinished)
                    return
                except _SaveError as failure:
                    self._clear(unfinished)
                    if attempt == _ATTEMPTS or not failure.is_transient:
                        self._failure = str(failure)
                        return
                    time.sleep(_PAUSE_S * attempt)
        except BaseException as error:  # a broken connection, or our own mistake: never the end of the training
            self._failure = f"{type(error).__name__}: {error}"

    def _attempt(self, step: int, content: Content, unfinished: Path) -> None:
        if bad := [name for names in self._agreed(lambda: _not_finite(content)) for name in names]:
            raise _SaveError(f"not finite: {', '.join(bad[:3])}", is_transient=False)
        self._agreed(lambda: self._on_first(lambda: self._make(unfinished)))
        self._agreed(lambda: self._save_tensors(unfinished, content.tensors, step))
        self._agreed(lambda: _save_own(unfinished / _own_name(self._process), content.own, step))
        entries = self._agreed(lambda: [on_disk.entry_of(unfinished, name) for name in self._written(unfinished)])
        files = tuple(entry for of_process in entries for entry in of_process)
        manifest = Manifest(step, self._ranks.world, torch.__version__, self._settings, files)
        self._agreed(lambda: self._on_first(lambda: _finish(unfinished, manifest)))
        self._agreed(lambda: _require(_complaints(unfinished, self._share(files))))  # read back, before any other goes
        self._agreed(lambda: self._on_first(lambda: _publish(unfinished, step)))
        self._agreed(lambda: self._on_first(lambda: on_disk.prune(self.folder, self._keep)))

    def _agreed(self, act: Callable[[], T]) -> list[T]:
        """What ``act`` gave on every process; _SaveError on all of them when it failed on any."""
        mine, problem = None, None
        try:
            mine = act()
        except OSError as error:
            text = f"{error.filename or self.folder}: {error.strerror or error}"
            problem = (text, error.errno in _TRANSIENT)
        except CheckpointError as error:
            problem = (str(error), False)
        except Exception as error:  # whatever it is: a rank that left here would have the others wait for it
            problem = (f"{type(error).__name__}: {error}", False)
        by_rank: list[Any] = [None] * self._processes
        dist.all_gather_object(by_rank, (mine, problem), group=self._group)
        problems = [(rank, *problem) for rank, (_, problem) in enumerate(by_rank) if problem is not None]
        if problems:
            reasons = "; ".join(f"rank {rank}: {text}" for rank, text, _ in problems)
            raise _SaveError(reasons, all(is_transient for *_, is_transient in problems))
        return [value for value, _ in by_rank]

    def _make(self, unfinished: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        on_disk.sweep(self.folder)
        (unfinished / _WEIGHTS).mkdir(parents=True)

    def _clear(self, unfinished: Path) -> None:
        """Nothing of a failed save stays, above all not where the disk is full."""
        dist.barrier(group=self._group)
        if self._ranks.is_first:
            on_disk.sweep(self.folder)
        dist.barrier(group=self._group)

    def _save_tensors(self, unfinished: Path, tensors: dict[str, Tensor], step: int) -> None:
        """Collective; OSError on every rank when a disk does not take it."""
        folder = unfinished / _WEIGHTS
        faults.at("weights", step=step, path=folder / f"__{self._process}_0.distcp")
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
        names = [path.name for path in (unfinished / _WEIGHTS).glob(f"__{self._process}_*")]
        names += [".metadata"] if self._process == 0 else []
        return [_own_name(self._process), *(f"{_WEIGHTS}/{name}" for name in sorted(names))]

    def _on_first(self, act: Callable[[], Any]) -> None:
        if self._ranks.is_first:
            act()

    @property
    def _process(self) -> int:
        return self._ranks.rank

    @property
    def _processes(self) -> int:
        return self._ranks.world // self._ranks.played

    def _share(self, files: tuple[FileEntry, ...]) -> list[FileEntry]:
        """The files that this process looks at, so that all are looked at once."""
        return list(files[self._process :: self._processes])

    # ---- loading --------------------------------------------------------------------------------------------

    def latest(self) -> Checkpoint | None:
        """The newest sound checkpoint, every file's size and sha256 compared; None when there is nothing at all.

        Damaged ones are named and set aside (``step-N.damaged``). CheckpointError when all are.
        """
        complaints: list[str] = []
        candidates = self._ranks.broadcast(on_disk.found_in(self.folder))
        for step, path in candidates:
            manifest, wrong = self._look(path)
            if manifest is not None and manifest.step != step:
                wrong = [f"{path}: its manifest is of step {manifest.step}"]
            if manifest is not None and not wrong:
                if complaints:
                    self._say("going on from the checkpoint before: " + path.name)
                return Checkpoint(path, manifest)
            complaints += wrong
            self._damaged.add(path)
            self._say(f"checkpoint {path.name} is unusable: {'; '.join(wrong[:3])}")
        if complaints:
            raise CheckpointError(
                f"resume: no checkpoint in {self.folder} is usable: {'; '.join(complaints[:5])} "
                "(choose another run_name to start anew)"
            )
        return None

    def at(self, path: Path) -> Checkpoint:
        """The checkpoint in ``path``. CheckpointError when it is not sound."""
        manifest, wrong = self._look(path)
        if manifest is None or wrong:
            raise CheckpointError(f"resume: {'; '.join(wrong[:5])}")
        return Checkpoint(path, manifest)

    def _look(self, path: Path) -> tuple[Manifest | None, list[str]]:
        """The manifest, and what is wrong with the checkpoint; the same on all ranks."""
        manifest, wrong = None, []
        try:
            manifest = Manifest.read(path)
            wrong = _complaints(path, self._share(manifest.files))
        except CheckpointError as error:
            wrong = [str(error)]
        return manifest, sorted({text for texts in self._ranks.gather(wrong) for text in texts})

    def forget_after(self, step: int) -> None:
        """Set aside what is newer than the checkpoint that the run goes on from: damaged, or another course."""
        if self._ranks.is_first:
            on_disk.sweep(self.folder)
            for later, path in on_disk.found_in(self.folder):
                if later > step:
                    on_disk.set_aside(path, "damaged" if path in self._damaged else "abandoned")
        self._ranks.broadcast(None)

    def load_tensors(self, checkpoint: Checkpoint, tensors: dict[str, Tensor]) -> None:
        """Fill ``tensors`` in place. CheckpointError names what is refused or missing."""
        reader = TensorReader(checkpoint.path / _WEIGHTS)
        try:
            dcp.load(tensors, storage_reader=reader, planner=TensorPlanner())
        except dcp.CheckpointException as error:
            reasons = {reader.refusal or why_refused(failure) for failure, _ in error.failures.values()}
            raise CheckpointError(f"resume: {checkpoint.path.name}: {'; '.join(sorted(reasons))}") from None

    def load_own(self, checkpoint: Checkpoint) -> list[dict[str, Any]]:
        """What this process had of its own, or every process's when they were not as many."""
        processes = sum(entry.name.startswith("rank-") for entry in checkpoint.manifest.files)
        alike = processes == self._processes and checkpoint.manifest.world == self._ranks.world
        chosen = [self._process] if alike else range(processes)
        return [load_own(checkpoint.path / _own_name(process)) for process in chosen]


def _own_name(process: int) -> str:
    return f"rank-{process}.pt"


def _save_own(path: Path, own: dict[str, Any], step: int) -> None:
    faults.at("save", step=step, path=path)
    with disk.writing(path) as file:
        torch.save(own, file)
    on_disk.flush(path)


def _finish(unfinished: Path, manifest: Manifest) -> None:
    faults.at("manifest", step=manifest.step, path=unfinished / on_disk.MANIFEST)
    on_disk.write(unfinished / on_disk.MANIFEST, manifest.to_bytes())
    on_disk.flush(unfinished / _WEIGHTS)
    on_disk.flush(unfinished)
    Manifest.read(unfinished)


def _publish(unfinished: Path, step: int) -> None:
    faults.at("rename", step=step)
    on_disk.publish(unfinished)


def _complaints(path: Path, entries: list[FileEntry]) -> list[str]:
    texts = (on_disk.complaint(path, entry) for entry in entries)
    return [text for text in texts if text is not None]


def _require(complaints: list[str]) -> None:
    if complaints:
        raise CheckpointError("; ".join(complaints))


def _not_finite(content: Content) -> list[str]:
    """Names of tensors with a NaN or an infinity in this process's part."""
    named = [*content.tensors.items(), *_tensors_in(content.own.get("compressors"), "compressors")]
    return [name for name, tensor in named if tensor.is_floating_point() and not _is_finite(tensor)]


def _is_finite(tensor: Tensor) -> bool:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return bool(torch.isfinite(local).all())


def _tensors_in(tree: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _tensors_in(value, f"{name}/{key}")
