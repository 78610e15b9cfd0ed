"""The launcher and its ranks, forked from the server that has imported everything: a start under torchrun without 10 s
of imports.

The launcher is `fsdp_lab.launch`, with torchrun's agent, its signals, its watch over the ranks; the ranks are children
of it in sessions of their own, as it starts them otherwise. What is missing is `python -m` alone: tests of that, and
some of each kind of end, start real processes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any

from fsdp_lab.ranks.processes import state
from tests.distributed import _CONTEXT


def _nothing() -> None:
    pass


class Launched:
    """A forked launcher, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        words: Sequence[str],
        ranks: int,
        environment: Mapping[str, str],
        folder: Path,
        first: Callable[[], None] = _nothing,
    ) -> None:
        """``fsdp_lab.launch`` on its command line, which starts ``ranks`` ranks, each with a call of ``first``; what
        they print goes to files in ``folder``."""
        self._files = [folder / f"{name}-{time.monotonic_ns()}" for name in ("out", "err")]
        self._process = _CONTEXT.Process(
            target=_launch, args=(list(words), ranks, dict(environment), self._files, first), daemon=True
        )
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
            raise subprocess.TimeoutExpired("fsdp_lab.launch", timeout or 0)
        out, err = (path.read_text() if path.exists() else "" for path in self._files)
        return out, err

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _launch(
    words: list[str], ranks: int, environment: dict[str, str], files: list[Path], first: Callable[[], None]
) -> None:
    for path, number in zip(files, (1, 2), strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    os.environ.clear()
    os.environ.update(environment)
    seats = _seats(ranks, first)  # now, while this process has no threads
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

    from fsdp_lab import launch

    SubprocessHandler._popen = lambda self, args, env: seats.pop().take(args, env)
    sys.exit(launch.main(words))


class _Seat:
    """A process that waits to be told which rank it is; to torchrun it is the `subprocess.Popen` of that rank."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self._pipe = pid, pipe
        self.returncode: int | None = None

    def take(self, args: Sequence[str], environment: Mapping[str, str]) -> _Seat:
        with os.fdopen(self._pipe, "wb") as pipe:
            pickle.dump((tuple(args), dict(environment)), pipe)
        return self

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("rank", timeout or 0)
            time.sleep(0.02)
        return self.returncode

    def _waited(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _seats(ranks: int, first: Callable[[], None]) -> list[_Seat]:
    seats: list[_Seat] = []
    for _ in range(ranks):
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            for other in (theirs, *(seat._pipe for seat in seats)):
                os.close(other)
            _be_a_rank(ours, first)
        os.close(ours)
        seats.append(_Seat(pid, theirs))
    return seats


def _be_a_rank(pipe: int, first: Callable[[], None]) -> None:
    """Never returns."""
    os.setsid()
    with os.fdopen(pipe, "rb") as file:
        told = file.read()
    if not told:  # the launcher has ended, or was killed, before it started this rank
        os._exit(0)
    args, environment = pickle.loads(told)
    os.environ.clear()
    os.environ.update(environment)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(_name(os.getppid(), environment["RANK"]))
    code: Any = 1
    try:
        first()
        sys.argv[1:] = args[args.index("-m") + 2 :]
        from tqdm import tqdm

        tqdm.set_lock(RLock())  # its own is a semaphore, and ranks leave by os._exit
        runpy.run_module(args[args.index("-m") + 1], run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        code = ending.code or 0
    finally:
        os._exit(code)


def _name(launcher: int, rank: int | str) -> str:
    """What a forked rank's process is called: its environment, as others can read it, is still that of the server."""
    return f"rank {rank}/{launcher}"


def forked_ranks(launcher: int) -> dict[int, int]:
    """The process ids of a forked launcher's ranks that run, by rank, also when the launcher has ended."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name = (folder / "comm").read_text().strip()
            if name.endswith(f"/{launcher}") and is_running(int(folder.name)):
                found[int(name.removeprefix("rank ").partition("/")[0])] = int(folder.name)
    return found


def is_running(pid: int) -> bool:
    """Has the process not ended? One that nobody has waited for yet has."""
    return state(pid) not in ("", "X", "Z")
