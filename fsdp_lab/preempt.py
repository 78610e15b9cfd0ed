"""Stop signals, acted on by all ranks at the same step; and who died when a collective breaks."""

from __future__ import annotations

import os
import signal
from types import FrameType

import torch

from fsdp_lab.distributed import Ranks

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Preempted(BaseException):
    """The run was told to stop (SIGTERM, SIGINT, SIGUSR1 or SIGUSR2)."""


class Stop:
    """Remembers that a stop signal came; `agree` makes it every rank's business.

    A handler must not raise in the middle of a step: the other ranks would wait in a collective for one that
    has left, and torchrun signals the survivors of a crash just as it forwards a scheduler's signal. A second
    signal raises `Preempted` at once.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._received: str | None = None
        host = os.uname().nodename
        self._local_pids = {r: pid for r, (name, pid) in enumerate(ranks.gather((host, os.getpid()))) if name == host}
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def check(self) -> None:
        """Raise `Preempted` when this rank was told to stop (only where no other rank waits for this one)."""
        if self._received is not None:
            raise Preempted(self._received)

    def agree(self) -> None:
        """Raise `Preempted` on all ranks when any was told to stop; collective."""
        flag = torch.tensor([self._received is not None], dtype=torch.int32)
        if self._ranks.world > 1:
            flag = self._ranks.sum(flag)
        if flag.item():
            raise Preempted(self._received or "a signal to another rank")

    def dead_ranks(self) -> list[int]:
        """Ranks on this machine whose process has ended."""
        return [rank for rank, pid in self._local_pids.items() if not _alive(pid)]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None:
            raise Preempted(self._received)
        self._received = signal.Signals(number).name


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")  # without /proc nothing is known: assume it lives
