"""Reading checkpoints: nothing is loaded from one before every file of it was compared with its manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed.checkpoint as dcp
from torch import Tensor

from fsdp_lab.checkpoint.files import folder as on_disk
from fsdp_lab.checkpoint.files.content import WEIGHTS, own_name
from fsdp_lab.checkpoint.files.folder import CheckpointError, Manifest
from fsdp_lab.checkpoint.files.safe_load import TensorPlanner, TensorReader, load_own, why_refused
from fsdp_lab.ranks.distributed import Ranks


class Checkpoint(NamedTuple):
    """A checkpoint that was found sound, and its manifest."""

    path: Path
    manifest: Manifest


class Reader:
    """Finds and loads the checkpoints in ``folder``; ``say`` gets lines for the user. Every method is collective."""

    def __init__(self, folder: Path, ranks: Ranks, say: Callable[[str], None]) -> None:
        self._folder, self._ranks, self._say = folder, ranks, say
        self._damaged: set[Path] = set()

    def latest(self) -> Checkpoint | None:
        """The newest sound checkpoint, every file's size and sha256 compared; None when there is nothing at all.

        Damaged ones are named and set aside (``step-N.damaged``). CheckpointError when all are.
        """
        complaints: list[str] = []
        candidates = self._ranks.broadcast(on_disk.found_in(self._folder))
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
                f"resume: no checkpoint in {self._folder} is usable: {'; '.join(complaints[:5])} "
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
            wrong = on_disk.complaints(path, self._ranks.share(manifest.files))
        except CheckpointError as error:
            wrong = [str(error)]
        return manifest, sorted({text for texts in self._ranks.gather(wrong) for text in texts})

    def forget_after(self, step: int) -> None:
        """Set aside what is newer than the checkpoint that the run goes on from: damaged, or another course."""
        if self._ranks.is_first:
            on_disk.sweep(self._folder)
            for later, path in on_disk.found_in(self._folder):
                if later > step:
                    on_disk.set_aside(path, "damaged" if path in self._damaged else "abandoned")
        self._ranks.broadcast(None)

    def load_tensors(self, checkpoint: Checkpoint, tensors: dict[str, Tensor]) -> None:
        """Fill ``tensors`` in place. CheckpointError names what is refused or missing."""
        reader = TensorReader(checkpoint.path / WEIGHTS)
        try:
            dcp.load(tensors, storage_reader=reader, planner=TensorPlanner())
        except dcp.CheckpointException as error:
            reasons = {reader.refusal or why_refused(failure) for failure, _ in error.failures.values()}
            raise CheckpointError(f"resume: {checkpoint.path.name}: {'; '.join(sorted(reasons))}") from None

    def load_own(self, checkpoint: Checkpoint) -> list[dict[str, Any]]:
        """What this process had of its own, or every process's when they were not as many."""
        processes = sum(entry.name.startswith("rank-") for entry in checkpoint.manifest.files)
        alike = processes == self._ranks.processes and checkpoint.manifest.world == self._ranks.world
        chosen = [self._ranks.rank] if alike else range(processes)
        return [load_own(checkpoint.path / own_name(process)) for process in chosen]
