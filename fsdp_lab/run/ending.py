"""How a run ends: one row is written, whichever way it ends and whichever rank is left to write it."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from fsdp_lab import results
from fsdp_lab.checkpoint import NOT_BEGUN, newest_step
from fsdp_lab.ranks import faults, processes
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.ranks.exit_codes import FAILED, PREEMPTED
from fsdp_lab.ranks.preempt import Preempted, Stop
from fsdp_lab.ranks.watching.lifeline import How
from fsdp_lab.ranks.watching.noticeboard import Noticeboard
from fsdp_lab.ranks.watching.watchdog import Watchdog
from fsdp_lab.run.record import Record
from fsdp_lab.settings.config import AnyTraining

_ERROR_CHARACTERS = 1000
_FIRST_SPEAKS_S = 6
_NEWS_S = 5.0  # that the lifeline may take to say who broke a connection; more than a busy rank 0 takes
_RECORDED, _SAID, _LEFT = "recorded", "who died was said", "rank {} left and did not die"
_GLOO_ADVICE = " This is typically caused by"  # a guess at what we know


class Ending:
    """How one run ends on one rank: by its main thread, or, where that hangs, by those of `stop` and `watchdog`."""

    def __init__(self, record: Record, training: AnyTraining, ranks: Ranks) -> None:
        config = training.run
        self._record, self._config, self._ranks = record, config, ranks
        self._folder, self._program = record.paths.folder, training.program
        self._board = Noticeboard(ranks.world > ranks.played, self._board_is_gone)
        self._is_recorded = threading.Lock()
        self.stop = Stop(ranks, self._unheeded, config.stop_grace_s)
        self.watchdog = Watchdog(ranks, self._board, self.stop.local_pids, self._hung, config.hang_timeout_s)
        self._is_said_by_another = False
        self.unwritten: OSError | None = None
        """Why the row could not be written."""

    def ended_well(self) -> dict[str, Any]:
        """Append the row, and return it. Only rank 0 writes it: where it died meanwhile, the run has not ended well."""
        return self._append("ok") if self._ranks.is_first else self._record.row("ok")

    def failed(self, error: BaseException) -> str | None:
        """Append the row of a run that did not go well; what to say of it where another rank is the reason."""
        self.stop.heeded()
        text = " ".join(str(error).split()).partition(_GLOO_ADVICE)[0]
        if isinstance(error, Preempted):
            return self._told_to_stop(f"stopped by {text}", error.is_agreed)
        lost = self._who_broke_it() if isinstance(error, RuntimeError) else ""  # torch.distributed's are
        if not lost and "timed out" in text.lower() and self._ranks.world > 1:
            lost = f"no answer for {self._config.timeout_s} s: {self.watchdog.whereabouts()}; "
        self._append("failed", f"{lost}{type(error).__name__}: {text}")
        if lost and not self.stop.lifeline.is_on:
            self._let_another_speak()
            self._board.put(_LEFT.format(self._ranks.rank), "yes")
        self._leave("left" if lost else "failed", f"{type(error).__name__}: {text}")
        return lost + self._what_to_do() if lost else None

    def _let_another_speak(self) -> None:
        """Of the ranks that are left the first one says which died, and must not take those that left before for dead.

        One that hangs says nothing: it is waited for a while.
        """
        gone, own = self._gone(), self._ranks.rank
        first = min(rank for rank in range(own + 1) if rank == own or rank not in gone)
        end = time.monotonic() + _FIRST_SPEAKS_S
        while first < own and first not in self._gone() and time.monotonic() < end:
            time.sleep(0.05)
        self._is_said_by_another = (first < own and first in self._gone()) or bool(self._board.get([_SAID]))
        self._board.put(_SAID, "yes")

    def _told_to_stop(self, how: str, is_agreed: bool) -> str | None:
        """Tell a run that was stopped from one that lost a rank, whose launcher sends the others the same signal."""
        # also where all agreed: a slow rank must not call it a stop when rank 0 has died over the row meanwhile
        if not (is_agreed and self._ranks.is_first) and (died := self._died_unsaid()):
            self._append("failed", died + how)
            self._is_said_by_another = bool(self._board.get([_SAID]))
            self._leave("left")
            return died + self._what_to_do()
        for_another = is_agreed and not self._ranks.is_first
        if not for_another:
            self._append("preempted", how)
        self._leave("left" if is_agreed else "stopped", how)
        self._board.put(_LEFT.format(self._ranks.rank), "yes")
        if for_another:
            self._see_it_recorded(how)
        return None

    def _see_it_recorded(self, how: str) -> None:
        """Wait until rank 0, which ends at the same time, has written the row, and write it where that one dies.

        It may die at any moment: this rank calls the run stopped only after it has waited.
        """
        end = time.monotonic() + _FIRST_SPEAKS_S
        while time.monotonic() < end and self._is_unrecorded():
            if died := self._died_unsaid():
                self._append("failed", died + how)
            time.sleep(0.1)
        self._append("preempted", how)

    def _died_unsaid(self) -> str:
        """The ranks of this machine that have ended without saying that they leave; none if nobody can tell."""
        if far := self.stop.lifeline.dead():
            return self._obituaries(far)
        dead = self.stop.dead_ranks()
        left = self._board.get([_LEFT.format(rank) for rank in dead]) if dead else None
        if left is None:  # with the launcher, which then is what has ended
            return ""
        return self._obituaries([rank for rank in dead if _LEFT.format(rank) not in left])

    def _unheeded(self, signal_name: str) -> None:
        """Record a run that hangs, in the place of its main thread, and end this process."""
        dead = self._dead()
        where = f"stopped by {signal_name} while waiting for the other ranks"
        if dead and (self._speaks() or self.stop.lifeline.is_on):
            print(f"{self._program}: {dead}{self._what_to_do()}", file=sys.stderr, flush=True)
        self._end_now("failed" if dead else "preempted", dead + where)

    def _hung(self, report: str) -> None:
        """Record a run in which no rank moves any more and that nobody sent a signal, and end this process."""
        if self._speaks() or self.stop.lifeline.is_on:  # on another machine, where nobody reads rank 0's
            print(f"{self._program}: {report}; {self._what_to_do()}", file=sys.stderr, flush=True)
        self._end_now("failed", report)

    def _end_now(self, status: Literal["failed", "preempted"], error: str) -> NoReturn:
        if not self._ranks.is_first and not self.stop.lifeline.dead():
            time.sleep(_FIRST_SPEAKS_S)  # all give up at the same time: rank 0 must not take those that left for dead
        self._append(status, error)
        self._leave("left" if status == "failed" else "stopped", error)
        os._exit(FAILED if status == "failed" else PREEMPTED)

    def _who_broke_it(self) -> str:
        time.sleep(0.2)  # a rank that has just broken a connection needs a moment to be dead
        if not self.stop.dead_ranks():
            self.stop.lifeline.wait(_NEWS_S)
        return self._died_unsaid() or self._dead()

    def _dead(self) -> str:
        return self._obituaries(self.stop.dead_ranks())

    def _obituaries(self, ranks: Sequence[int]) -> str:
        return "".join(f"{self.stop.obituary(rank)}; " for rank in ranks)

    def _speaks(self) -> bool:
        """Is it for this rank to write the row? It is for rank 0, or the first rank left where nobody wrote it yet."""
        gone = self._gone()
        if not all(rank in gone for rank in range(self._ranks.rank)):
            return False
        return self._ranks.is_first or self._is_unrecorded()

    def _gone(self) -> set[int]:
        return {*self.stop.dead_ranks(), *self.stop.stopped_ranks()}

    def _is_unrecorded(self) -> bool:
        """Is it certain that nobody has written the row?"""
        if self.stop.lifeline.knows_of(0):  # which wrote the row, if it had a word left
            return self.stop.lifeline.died_silently(0)
        return self._board.get([_RECORDED]) == {}

    def _board_is_gone(self) -> bool:
        """Has whoever kept the board ended: rank 0, or the launcher of its machine, which ends soon after it?"""
        return self.stop.lifeline.knows_of(0) or processes.launcher_is_gone()

    def _leave(self, how: How, why: str = "") -> None:
        """Tell ranks that no launcher watches how this one ends."""
        self.stop.lifeline.leave(how, why)

    def say_at_once(self, lost: str) -> bool:
        """Print what became of another rank where others have to be told; what is still open may take long to close.

        True where there is nothing left to print: it has been, or, of ranks that share a terminal, another one does it.
        """
        if self.stop.lifeline.is_on:
            print(f"{self._program}: {lost}", file=sys.stderr, flush=True)
            return True
        return self._is_said_by_another

    def refused(self, why: str) -> None:
        """Tell the others that this rank does not begin, and ``why``."""
        self._leave("failed", why)

    def over(self) -> None:
        """This rank has nothing more to do with the others."""
        self._leave("left")

    def _what_to_do(self) -> str:
        saved = newest_step(self._folder)  # of the disk: a save may have ended that nobody has heard of yet
        if (self._folder / NOT_BEGUN).exists():
            return f"the training had not begun: the same command with --run_name {self._record.name} begins again"
        if saved is None:
            return "nothing was saved: start anew (--save_steps saves now and then)"
        return f"the same command with --run_name {self._record.name} goes on after step {saved}"

    def _append(self, status: str, error: str | None = None) -> dict[str, Any]:
        row = self._record.row(status, error and error[:_ERROR_CHARACTERS])
        if self._speaks() and self._is_recorded.acquire(blocking=False):  # one row a run, whoever writes it
            self._write(row)
        return row

    def _write(self, row: dict[str, Any]) -> None:
        path = self._record.paths.results
        try:
            self.watchdog.passed("row")
            faults.at("row")
            results.append(path, row)
            self._board.put(_RECORDED, "yes")
        except OSError as error:  # the model is still to be saved, elsewhere perhaps: complain at the end
            self.unwritten = error
            line = json.dumps(row, default=repr)
            print(f"cannot write {path} ({error.strerror}); add this line to it:\n{line}", file=sys.stderr, flush=True)
