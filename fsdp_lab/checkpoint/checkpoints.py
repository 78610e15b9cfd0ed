"""The checkpoints of one run: saved in the background while the training goes on, read before it begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from fsdp_lab.checkpoint.files.content import Content
from fsdp_lab.checkpoint.files.reading import Reader
from fsdp_lab.checkpoint.files.writing import Writer
from fsdp_lab.ranks.distributed import Ranks

_STAGES_ONCE = torch.__version__ < "2.13"  # its stager then forgets how to copy what is no tensor


class Checkpoints:
    """The checkpoints of one run in ``folder``, which all ranks must see; the newest ``keep`` of them stay.

    ``settings``: what a manifest says of the training. ``say`` gets lines for the user, on every rank.
    A save costs the training the time to copy the state (`exposed_s`); a thread writes the copy. A save that fails is
    reported, leaves nothing, and is counted (`failed`): training goes on. Every method is collective but `poll`.
    """

    def __init__(
        self, folder: Path, ranks: Ranks, keep: int, settings: dict[str, Any], say: Callable[[str], None]
    ) -> None:
        self.folder, self._ranks, self._say = folder, ranks, say
        self.reader = Reader(folder, ranks, say)
        self.exposed_s = 0.0
        self.saved = self.failed = 0
        self.newest: int | None = None
        self._writer = Writer(folder, ranks, keep, settings)
        self._stager: DefaultStager | None = None
        self._thread: threading.Thread | None = None
        self._step = 0
        self._failure: str | None = None

    def save(self, step: int, content: Content) -> None:
        """Copy the state after ``step`` steps; it is written in the background. Waits for a save under way first."""
        self.wait()
        start = time.perf_counter()
        self.connect()
        copy = self._copy(content)
        self._step, self._failure = step, None
        self._thread = threading.Thread(target=self._write, args=(step, copy), daemon=True, name=f"checkpoint {step}")
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
        """Make the connection that saves go over (`Writer.connect`): at the start, if the run may save at all."""
        self._writer.connect()

    def _write(self, step: int, content: Content) -> None:
        self._failure = self._writer.write(step, content)

    def _copy(self, content: Content) -> Content:
        if self._stager is None or _STAGES_ONCE:
            on_cuda = self._ranks.device.type == "cuda"
            self._stager = DefaultStager(StagingOptions(on_cuda, False, False, on_cuda))
        copy = self._stager.stage({"tensors": content.tensors, "own": content.own})
        assert isinstance(copy, dict)
        return Content(**copy, pieces=content.pieces)
