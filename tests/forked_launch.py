"""Programs that are sent signals, forked from the server that has imported everything; above all the launcher and its
ranks: a start under torchrun without 10 s of imports.

The launcher is `fsdp_lab.launch`, with torchrun's agent, its signals, its watch over the ranks; it forks them, as it
does for users (`fsdp_lab.ranks.forked`). What is missing is `python -m` alone: tests of that, and some of each kind of
end, start real processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import RLock

from fsdp_lab.ranks.forked import FORKING
from fsdp_lab.ranks.processes import state
from tests.distributed import _CONTEXT, preload

preload("fsdp_lab.launcher")


def _nothing() -> None:
    pass


class Forked:
    """A forked program, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, program: Callable[[], object], environment: Mapping[str, str], folder: Path) -> None:
        """``program()``, which leaves with its exit code; what it and its children print is in files in ``folder``."""
        self._files = [folder / f"{name}-{time.monotonic_ns()}" for name in ("out", "err")]
        self._process = _CONTEXT.Process(target=_run, args=(program, dict(environment), self._files), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the number of the signal that killed it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it and its ranks printed, once it has ended."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a forked program", timeout or 0)
        out, err = (path.read_text() if path.exists() else "" for path in self._files)
        return out, err

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Launched(Forked):
    """A forked launcher."""

    def __init__(
        self,
        words: Sequence[str],
        ranks: int,
        environment: Mapping[str, str],
        folder: Path,
        first: Callable[[], None] = _nothing,
    ) -> None:
        """``fsdp_lab.launch`` on its command line, which starts ``ranks`` ranks, after a call of ``first``."""
        super().__init__(partial(_launch, list(words), ranks, first), environment, folder)


def _run(program: Callable[[], object], environment: dict[str, str], files: list[Path]) -> None:
    for path, number in zip(files, (1, 2), strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    os.environ.clear()
    os.environ.update(environment)
    program()


def _launch(words: list[str], ranks: int, first: Callable[[], None]) -> None:
    os.environ[FORKING] = str(ranks)  # it has been started as it would start itself again
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # with an accelerator it forks none
    first()
    from tqdm import tqdm

    from fsdp_lab import launch

    tqdm.set_lock(RLock())  # its own is a semaphore, and ranks leave by os._exit
    sys.exit(launch.main(words))


def is_running(pid: int) -> bool:
    """Has the process not ended? One that nobody has waited for yet has."""
    return state(pid) not in ("", "X", "Z")
