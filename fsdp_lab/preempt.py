"""Signals: told to stop, or taken down by another rank's death?

torchrun sends SIGTERM in both cases. Rank 0 tells them apart by looking whether another local rank is
already gone; the others stay until rank 0 has looked.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from fsdp_lab.distributed import Ranks


class Preempted(BaseException):
    """This process was told to stop (SIGTERM, SIGINT, SIGUSR1 or SIGUSR2)."""


class RankDied(RuntimeError):
    """Another rank's process ended while this one was still running."""


def watch_signals(ranks: Ranks) -> None:
    """From now on a stop signal raises `Preempted`, or `RankDied` when another local rank is gone already."""
    host = os.uname().nodename
    peers = {rank: pid for rank, (name, pid) in enumerate(ranks.gather((host, os.getpid()))) if name == host}

    def stop(number: int, frame: FrameType | None) -> None:
        dead = [rank for rank, pid in peers.items() if not _alive(pid)]
        if ranks.is_first and dead:
            raise RankDied(f"rank {dead[0]} died (its own message, if it left one, is above)")
        if not ranks.is_first and 0 in peers:
            _wait_for_end(peers[0], seconds=5)
        raise Preempted(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, stop)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")  # without /proc nothing is known: assume it lives


def _wait_for_end(pid: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while _alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
