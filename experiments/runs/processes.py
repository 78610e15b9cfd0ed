"""Processes that belong together end together, whoever fails and whatever signal comes."""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

Process = subprocess.Popen[Any]
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SAVE_S = 30  # after SIGTERM, to save and leave; torchrun gives its workers as long
_POLL_S = 0.02


def wait_together(starting: Iterable[Process], grace_s: float) -> int:
    """Take processes (group leaders) as they start and wait for all of them.

    Returns 0, or the exit code of the first that failed (128 + n when signal n ended it). After a failure the others
    have ``grace_s`` seconds to end by themselves. Any exception, Ctrl-C among them, ends them all and is raised again.
    """
    processes: list[Process] = []
    try:
        processes.extend(starting)
        return _wait(processes, grace_s)
    except BaseException:
        end(processes, _SAVE_S)
        raise


@contextmanager
def leaving_tidily() -> Iterator[None]:
    """Inside, SIGINT, SIGTERM, SIGHUP and SIGQUIT raise SystemExit(128 + n); a second signal does not interrupt that.

    Signals that the program ignores (nohup) stay ignored. Outside the main thread nothing changes."""
    wanted = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in wanted}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    for ignored in _SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)
    raise SystemExit(128 + number)


def dying_with_this_process(by: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """A ``preexec_fn`` for Popen: the kernel sends the child a signal when the thread that starts it ends.

    That holds for a kill -9, too."""
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, by)
        if os.getppid() != parent:  # it died before we could ask
            os._exit(1)

    return ask


def end(processes: Sequence[Process], seconds: float) -> None:
    """Send SIGTERM to the groups of those still running, and SIGKILL to those left after ``seconds``."""
    _signal(processes, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while _running(processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    _signal(processes, signal.SIGKILL)
    for process in processes:
        process.wait()


def _wait(processes: Sequence[Process], grace_s: float) -> int:
    failure, deadline = 0, float("inf")
    while running := _running(processes):
        failure = failure or _first_failure(processes)
        if failure:
            deadline = min(deadline, time.monotonic() + grace_s)
        if time.monotonic() > deadline:
            end(running, grace_s)
        time.sleep(_POLL_S)
    return failure or _first_failure(processes)


def _running(processes: Sequence[Process]) -> list[Process]:
    return [process for process in processes if process.poll() is None]


def _first_failure(processes: Sequence[Process]) -> int:
    code = next((process.returncode for process in processes if process.poll()), 0)
    return code if code >= 0 else 128 - code


def _signal(processes: Sequence[Process], number: signal.Signals) -> None:
    for process in _running(processes):
        os.killpg(process.pid, number)
