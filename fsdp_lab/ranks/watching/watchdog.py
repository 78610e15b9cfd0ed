"""Finds the rank that keeps the others waiting: each says where it stands when it has stood there for long.

A rank that waits in a collective for a hung one runs no Python in its main thread; this thread runs. It publishes
where the main thread stands, for the other ranks to read, and only once nothing has moved for a while: a healthy run
sends nothing. A rank that says nothing then is one whose process does not run.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from fsdp_lab.ranks import processes
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.ranks.watching.noticeboard import Noticeboard

_QUIET_S, _POLL_S = 5.0, 0.5
_UNWATCHED = ("", "start", "profile", "save", "model", "row")  # may take one rank long: timeout_s is for those
_ROOT = Path(__file__).resolve().parents[3]
_WAITING = ("torch/distributed/", "comm_compress/drive/transport.py")  # where a rank stands that waits for others


@dataclass(frozen=True)
class Place:
    """Where a rank stands: the step, the point in it, how many points of that step it has passed, the line of code."""

    step: int
    point: str
    passed: int
    line: str
    still_s: float
    beat: int

    @property
    def waits(self) -> bool:
        """Does the rank wait in a collective, as far as its line of code tells?"""
        return any(part in self.line for part in _WAITING)

    def __str__(self) -> str:
        return f"step {self.step}, {self.point}, for {self.still_s:.0f} s at {self.line}"


class Watchdog:
    """Calls ``hung(report)``, in a thread of its own, when the main thread passes no point for ``limit_s`` seconds.

    That is from `watch` on (the first step may compile), and not while it saves; with ``limit_s`` 0 never.
    `whereabouts` says, whenever it is asked, who did not arrive and where each rank stands.
    """

    def __init__(
        self,
        ranks: Ranks,
        board: Noticeboard,
        local_pids: dict[int, int],
        hung: Callable[[str], None],
        limit_s: float,
    ) -> None:
        self._ranks, self._board, self._local_pids = ranks, board, local_pids
        self._hung, self._limit_s = hung, limit_s
        self._step, self._point, self._passed = 0, "", 0
        self._moved = time.monotonic()
        self._watches = False
        self._beat = 0
        self._main = threading.main_thread().ident
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="watchdog").start()

    def passed(self, point: str, step: int | None = None) -> None:
        """The main thread has come to ``point`` (of ``step``, which begins with it)."""
        if step is not None:
            self._step, self._passed = step, 0
        self._point, self._passed, self._moved = point, self._passed + 1, time.monotonic()

    def watch(self) -> None:
        """Take a rank that stands still for hung from now on."""
        self._watches = True

    def close(self) -> None:
        """End the thread that watches."""
        self._over.set()

    def whereabouts(self) -> str:
        """Which ranks did not arrive, and where all of them stand; takes three seconds."""
        self._publish()
        before = self._published()
        time.sleep(3.0)
        now = self._published()
        now[self._ranks.rank] = self._place()
        alive = {rank: place for rank, place in now.items() if rank == self._ranks.rank or place != before.get(rank)}
        silent = [rank for rank in self._everyone() if rank not in alive]
        missing = silent or _behind(alive)
        lines = [f"rank {rank} did not arrive: {self._of(rank, alive, now)}" for rank in missing]
        others = [rank for rank in self._everyone() if rank not in missing]
        verb = "waits" if missing else "stands still"
        return "; ".join(lines + [f"rank {rank} {verb}: {self._of(rank, alive, now)}" for rank in others])

    def _everyone(self) -> range:
        return range(self._ranks.processes)

    def _of(self, rank: int, alive: dict[int, Place], seen: dict[int, Place]) -> str:
        if rank in alive:
            return str(alive[rank])
        letter = processes.state(self._local_pids[rank]) if rank in self._local_pids else ""
        how = {"T": "its process is stopped (SIGSTOP)", "Z": "its process has ended", "X": "its process has ended"}
        text = how.get(letter, "it gives no sign of life (its process does not run, or its machine is gone)")
        return text + (f", last seen at {seen[rank]}" if rank in seen else "")

    # ---- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        quiet_s = min(_QUIET_S, self._limit_s / 2) if self._limit_s else _QUIET_S
        judging: threading.Thread | None = None
        while not self._over.wait(_POLL_S):
            still_s = time.monotonic() - self._moved
            if still_s > quiet_s:
                self._publish()
            is_over_limit = self._watches and 0 < self._limit_s < still_s and self._point not in _UNWATCHED
            if is_over_limit and not (judging and judging.is_alive()):
                judging = threading.Thread(target=self._judge, args=(still_s,), daemon=True, name="watchdog's judge")
                judging.start()  # while this one goes on to publish: others judge a little later

    def _judge(self, still_s: float) -> None:
        report = self.whereabouts()
        if time.monotonic() - self._moved > self._limit_s:  # nobody came meanwhile
            self._hung(f"no progress for {still_s:.0f} s: {report}")

    def _place(self) -> Place:
        frame = sys._current_frames().get(self._main or 0)
        line = "an unknown line"
        if threading.get_ident() == self._main:
            line = "a collective that has timed out (torch/distributed/)"  # only then does the main thread ask
        elif frame is not None:
            path = frame.f_code.co_filename
            shown = path.removeprefix(f"{_ROOT}/").rpartition("site-packages/")[2]
            line = f"{shown}:{frame.f_lineno} in {frame.f_code.co_name}"
        return Place(self._step, self._point, self._passed, line, time.monotonic() - self._moved, self._beat)

    def _publish(self) -> None:
        self._beat += 1
        self._board.put(f"place {self._ranks.rank}", json.dumps(asdict(self._place())))

    def _published(self) -> dict[int, Place]:
        ranks = {f"place {rank}": rank for rank in self._everyone()}
        texts = self._board.get(list(ranks)) or {}
        return {ranks[key]: Place(**json.loads(text)) for key, text in texts.items()}


def _behind(places: dict[int, Place]) -> list[int]:
    """The ranks in an earlier step or point than another; else those that do not wait while another does."""
    progress = {rank: (place.step, place.passed) for rank, place in places.items()}
    if len(set(progress.values())) > 1:
        return [rank for rank, reached in progress.items() if reached == min(progress.values())]
    busy = [rank for rank, place in places.items() if not place.waits]
    return busy if len(busy) < len(places) else []
