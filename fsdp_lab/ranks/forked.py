"""Ranks that are forked from the launcher, which has imported for all of them what a rank imports.

That is 5 s of a core for each rank otherwise, before its first step. Only our own trainers are started so, on Linux
without an accelerator: its driver, once it is asked for devices, is of no use after a fork. And only the first time:
ranks that torchrun starts again are new processes, because the launcher has threads by then.

The ranks are forked before the launcher has a connection, or a thread but those of OpenBLAS, which makes new ones
after a fork, and wait at a pipe to be told who they are. They are its children in sessions of their own, as torchrun's
are, so that signals, exit codes and a launcher's death are what they are otherwise. `ps` shows them under the
launcher's command line, and ``rank 0/PID`` as their name.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import runpy
import signal
import subprocess
import sys
import time
import traceback
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.ranks.exit_codes import FAILED, OK
from fsdp_lab.ranks.processes import name_of_rank

TRAINERS = ("fsdp_lab.train", "fsdp_lab.eagle.train")
FORKING = "FSDP_LAB_FORKING"  # how many ranks this launcher was started to fork, in their environment; 0: none


def start_again(argv: Sequence[str]) -> None:
    """Start the launcher anew in the environment of the ranks that it is to fork, if it is and was not yet.

    Allocator and number of threads are read before a program begins, and before torch is imported.
    """
    ranks = _asked(argv)
    if ranks and sys.platform == "linux" and FORKING not in os.environ:
        environment = {**rank_environment(ranks), FORKING: str(ranks)}
        os.execve(sys.executable, [sys.executable, "-m", "fsdp_lab.launch", *argv], environment)


def _asked(argv: Sequence[str]) -> int:
    """How many ranks of one of our trainers are asked for; 0: another program, or a number that torchrun finds out."""
    trainer = next((at for at, word in enumerate(argv) if word in TRAINERS), 0)
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--nproc-per-node", "--nproc_per_node", default="")
    asked = parser.parse_known_args(argv[:trainer])[0].nproc_per_node if "-m" in argv[:trainer] else ""
    return int(asked) if asked.isdecimal() else 0


class WaitingRank:
    """A forked process that waits to be told which rank it is; to torchrun it is that rank's `subprocess.Popen`."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self.pipe = pid, pipe
        self.returncode: int | None = None

    def take(self, args: Sequence[str], environment: Mapping[str, str]) -> WaitingRank:
        """Tell it the command line after the module's name, and its whole environment."""
        with contextlib.suppress(BrokenPipeError), os.fdopen(self.pipe, "wb") as pipe:  # killed: `poll` tells
            pickle.dump((list(args), dict(environment)), pipe)
        return self

    def poll(self) -> int | None:
        """The exit code, minus a signal's number, or None."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code. `subprocess.TimeoutExpired` after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("rank", timeout or 0)
            time.sleep(0.02)
        return self.returncode


def fork_ranks(module: str, ranks: int, handlers: Mapping[signal.Signals, Any]) -> list[WaitingRank]:
    """Processes for ``ranks`` ranks of the trainer ``module``, with ``handlers`` of signals; none where there is an
    accelerator."""
    import torch  # with what `start_again` has put into the environment

    if module not in TRAINERS or torch.accelerator.is_available():
        return []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)  # an import that is interrupted may hide by what
    try:
        _import(module)
        return _forked(module, ranks, handlers, mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _import(module: str) -> None:
    with importing():
        importlib.import_module(module)
    sys.modules.pop(module)  # each rank runs it as its __main__


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Without the garbage collector, which takes a seventh of the time. What is there at the end it never looks at: it
    would copy the memory of all modules in each forked rank."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _forked(module: str, ranks: int, handlers: Mapping[signal.Signals, Any], mask: Iterable[int]) -> list[WaitingRank]:
    waiting: list[WaitingRank] = []
    for _ in range(ranks):
        theirs, ours = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_a_rank(module, theirs, [ours, *(rank.pipe for rank in waiting)], handlers, mask)
        os.close(theirs)
        waiting.append(WaitingRank(pid, ours))
    return waiting


@contextlib.contextmanager
def started_by_torchrun(module: str, waiting: list[WaitingRank]) -> Iterator[None]:
    """Have torchrun's agent take ``waiting`` where it would start processes, as long as there are some.

    Not where a rank's output goes to a file, or where it is bound to a NUMA node, by a command in front of its own.
    """
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    start = getattr(SubprocessHandler, "_popen", None)
    if start is None:
        # another version of torch: ranks are started as before, and those that wait end with the launcher
        yield
        return
    command = (sys.executable, "-u", "-m", module)

    def take(self: Any, args: tuple[str, ...], env: dict[str, str]) -> Any:
        if waiting and args[:4] == command and self._stdout is self._stderr is None:
            return waiting.pop(0).take(args[4:], env)
        return start(self, args, env)

    SubprocessHandler._popen = take  # it has no other way to be given processes
    try:
        yield
    finally:
        SubprocessHandler._popen = start


def _be_a_rank(
    module: str, pipe: int, others: list[int], handlers: Mapping[signal.Signals, Any], mask: Iterable[int]
) -> NoReturn:
    code = FAILED
    try:
        os.setsid()
        for other in others:
            os.close(other)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        with os.fdopen(pipe, "rb") as file:
            told = file.read()
        if not told:  # the launcher has ended, or was killed, before it started this rank
            os._exit(OK)
        sys.argv[1:], environment = pickle.loads(told)
        os.environ.clear()
        os.environ.update(environment)
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(name_of_rank(os.getppid(), environment["RANK"]))
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = OK
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else FAILED if ending.code else OK
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
