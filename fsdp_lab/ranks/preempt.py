"""Stop signals, acted on by all ranks at the same step; and who died when a collective breaks."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import torch

from fsdp_lab.ranks import processes
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.ranks.meeting.hosts import host_key
from fsdp_lab.ranks.watching.lifeline import Lifeline

_FINAL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # SIGKILL follows; a closed terminal is SIGHUP
_LOST_S = 5.0  # that a rank may take to notice by itself that another is dead
_SIGNALS = (*_FINAL, signal.SIGUSR1, signal.SIGUSR2)  # which are a scheduler's notice


SAME_S = 1.0
"""Signals that follow each other as fast are one: a killed launcher sends its ranks SIGTERM once for each of its
threads, a closed terminal SIGHUP as often as there are shells in it. No user is as impatient."""


class Preempted(BaseException):
    """The run was told to stop, by one of `stop_signals`.

    ``is_agreed``: all ranks know, and stand at the same place.
    """

    def __init__(self, text: str, is_agreed: bool = False) -> None:
        super().__init__(text)
        self.is_agreed = is_agreed


class RankLostError(RuntimeError):
    """Another rank died or hangs; the message says which. ``is_said``: it is printed already, or by another rank."""

    def __init__(self, text: str, is_said: bool = False) -> None:
        super().__init__(text)
        self.is_said = is_said


def stop_signals() -> list[signal.Signals]:
    """Those that tell a run to stop; SIGHUP is none under nohup, which has it ignored."""
    return [number for number in _SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


class Stop:
    """Remembers that a stop signal came; with `agree` all ranks learn of it at the same place.

    A handler must not raise in the middle of a step: the other ranks would wait in a collective for one that
    has left, and torchrun signals the survivors of a crash just as it forwards a scheduler's signal. A second
    signal, a second later or more, raises `Preempted` at once; once the run is ending, further ones do nothing.

    A rank that waits in a collective for a dead or hung one runs no Python and heeds nothing. ``unheeded`` is called
    with the signal's name, in a thread of its own, when one that SIGKILL follows (torchrun's comes after 30 s) has gone
    unheeded for ``grace_s`` seconds, and every thread's stack is written to stderr.
    """

    def __init__(self, ranks: Ranks, unheeded: Callable[[str], None], grace_s: float) -> None:
        self._ranks = ranks
        self._received: str | None = None
        self._received_at = 0.0
        self._heeded = threading.Event()
        self._unheeded, self._grace_s = unheeded, grace_s
        host = host_key()
        self.local_pids = {r: pid for r, (key, pid) in enumerate(ranks.gather((host, os.getpid()))) if key == host}
        for number in stop_signals():
            signal.signal(number, self._on_signal)
        self._watch_signals()
        self.lifeline = Lifeline(ranks)  # it signals this process, from now on
        """What becomes of ranks that no launcher of this machine watches."""

    def check(self) -> None:
        """Raise `Preempted` when this rank was told to stop (only where no other rank waits for this one)."""
        if self._received is not None:
            self.heeded()
            raise Preempted(self._received)

    def heeded(self) -> None:
        """Note that the run is ending by itself, so that `unheeded` need not be called."""
        self._heeded.set()

    def agree(self) -> None:
        """Raise `Preempted` on all ranks when any was told to stop; collective."""
        flag = torch.tensor([self._received is not None], dtype=torch.int32)
        if self._ranks.world > 1:
            flag = self._ranks.sum(flag)
        if flag.item():
            self.heeded()
            raise Preempted(_who_was_told(self._ranks.gather(self._received)), is_agreed=True)

    def dead_ranks(self) -> list[int]:
        """The ranks whose process has ended: on this machine, and wherever the lifeline tells of them."""
        ended = [rank for rank, pid in self.local_pids.items() if processes.state(pid) in ("Z", "X")]
        here = [rank for rank in ended if not self.lifeline.has_left(rank)]
        return sorted({*here, *self.lifeline.dead()})

    def obituary(self, rank: int) -> str:
        """``rank 1 died``, with what is known besides, of one of `dead_ranks`."""
        return self.lifeline.obituary(rank) if rank in self.lifeline.dead() else f"rank {rank} died"

    def stopped_ranks(self) -> list[int]:
        """The ranks on this machine whose process is stopped by a signal: nothing more comes from them."""
        return [rank for rank, pid in self.local_pids.items() if processes.state(pid) in ("T", "t")]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._heeded.is_set():
            return  # the row is being written: a launcher that ends the others must not end that
        if self._received is None:
            self._received, self._received_at = signal.Signals(number).name, time.monotonic()
        elif time.monotonic() - self._received_at > SAME_S:
            self.heeded()
            raise Preempted(self._received)

    def _watch_signals(self) -> None:
        """Learn of signals while the main thread is in a call that does not return: only C's own handler runs then."""
        watched, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(watched,), daemon=True, name="stop signals").start()

    def _watch(self, watched: int) -> None:
        number = 0
        while number not in _FINAL:
            number = os.read(watched, 1)[0]
        is_lost = bool(self.lifeline.dead())  # then the signal is our own, and nothing is left to be saved
        if not self._heeded.wait(min(self._grace_s, _LOST_S) if is_lost else self._grace_s):
            if not is_lost:
                faulthandler.dump_traceback(all_threads=True)
            self._unheeded(signal.Signals(number).name)


def _who_was_told(received: list[str | None]) -> str:
    """``SIGTERM`` where all ranks got a signal, as from a launcher, else such as ``SIGUSR2 to rank 1``."""
    ranks = [rank for rank, name in enumerate(received) if name is not None]
    names = " and ".join(sorted({name for name in received if name is not None}))
    some = ranks if len(ranks) < len(received) else []
    return names + (f" to rank {', '.join(map(str, some))}" if some else "")
