"""Carrying out a plan: cells as processes, each recorded when it ends, all of them ended when we are.

What is known about a cell is in the results file and nowhere else, so that any start, on any machine, goes on where
the last one was. Beside the file, FILE.cells/ has the settings and the output of running and of failed cells, a folder
a cell and in it a folder a run. A run that was stopped and has left a checkpoint there goes on from it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.runs.processes import dying_with_this_process, end, leaving_tidily
from experiments.sweeps.launch import command_of, config_of, environment_of, folder_name, new_run_name, record
from experiments.sweeps.locks import Lock, take
from experiments.sweeps.plan import TRIES, Plan, Row, past_of, sound_rows
from experiments.sweeps.progress import Progress
from experiments.sweeps.recipe.cells import Cell, Key
from experiments.sweeps.recipe.trainers import AnyConfig
from experiments.sweeps.slots import Slot
from fsdp_lab.ranks.exit_codes import USER_ERROR

_POLL_S = 0.2
_OTHERS_POLL_S = 2.0  # for cells that another process runs
_STOP_S = 60  # torchrun gives its ranks 30


@dataclass
class Attempt:
    """A cell that is running: its process, and when it began."""

    cell: Cell
    config: AnyConfig
    folder: Path
    slot: Slot
    lock: Lock
    process: subprocess.Popen[Any]
    started: float
    goes_on: bool  # from what an earlier start of the run has left
    rows_before: int  # of the run, by earlier starts

    @property
    def name(self) -> str:
        """The name of the run, by which its row is found."""
        return str(self.config.run.run_name)

    @property
    def log(self) -> Path:
        """The file that the run's output goes to."""
        return self.folder / "log.txt"

    def clear(self, status: str) -> None:
        """Remove what need not stay of a run that ended so: all; of a failed one what it put out, of a stopped one
        nothing where it can go on."""
        if status == "failed":
            shutil.rmtree(self.folder / "output", ignore_errors=True)  # settings and log stay
        elif status == "ok" or not may_go_on(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)


class Runner:
    """Runs the cells of a plan. ``run`` returns when every cell has ended, here or in another process.

    ``logs``: a folder that is there, in which the output of every run that ended well stays, as ``RUN.txt``; None: it
    is thrown away.
    """

    def __init__(self, plan: Plan, out: Path, slots: list[Slot], progress: Progress, logs: Path | None = None) -> None:
        self.plan, self.out, self.progress, self.logs = plan, out, progress, logs
        self.folder = out.with_name(out.name + ".cells")
        self.waiting = plan.to_run()
        self.running: list[Attempt] = []
        self.free = list(slots)
        self.tries: dict[Key, int] = {cell.key: plan.tries_left(cell) for cell in self.waiting}
        self.recorded = 0  # cells that ended with a row, in this start

    def run(self) -> None:
        """Run the plan. ValueError when the trainer refuses the settings of the first cell.

        At SIGINT, SIGTERM, SIGHUP and SIGQUIT the running cells are told to stop and recorded as preempted; then
        SystemExit(128 + n) is raised."""
        try:
            with leaving_tidily():
                while self.waiting or self.running:
                    self._collect()
                    self._start_what_can_be()  # first what has just ended makes room: no slot idles for a poll
                    self.progress.tick(self.running, self.waiting)
                    time.sleep(_POLL_S if self.running else _OTHERS_POLL_S if self.waiting else 0)
        except BaseException as error:
            self._stop(error)
            raise

    def _start_what_can_be(self) -> None:
        for cell in list(self.waiting):
            if not self.free:
                return
            lock = take(self.folder / folder_name(cell) / "lock")
            if lock is None:
                self.progress.elsewhere(cell)
                continue
            self.waiting.remove(cell)
            try:
                row = self._ended_elsewhere(cell)
                if row is not None:
                    self.progress.ended(cell, row, 0, self.waiting)
                    self._release(lock)
                else:
                    self.running.append(self._start(cell, lock))
            except BaseException:
                self._release(lock)
                raise

    def _ended_elsewhere(self, cell: Cell) -> Row | None:
        """The row of a cell that another process has finished, or failed at, since the plan was made."""
        rows = sound_rows(self.out)
        past = past_of(rows).get(cell.key)
        if past is None or (past.ok is None and (past.failures < TRIES or self.plan.retry_failed)):
            return None
        return past.ok or next(row for row in reversed(rows) if row["status"] == "failed")

    def _start(self, cell: Cell, lock: Lock) -> Attempt:
        slot, own = self.free.pop(0), self.folder / folder_name(cell)
        # We hold the lock: these are of runs that were stopped, or killed with their sweep.
        stopped = sorted(output.parent for output in own.glob("*/output"))
        name = next((folder.name for folder in stopped if may_go_on(folder)), None) or new_run_name(cell)
        for left in stopped:
            if left.name != name:
                shutil.rmtree(left)
        folder = own / name
        goes_on, before = may_go_on(folder), len(self._rows_of(name))
        folder.mkdir(exist_ok=True)
        keeps_output = "output_dir" in self.plan.recipe.common
        config = config_of(cell, name, self.out, None if keeps_output else folder / "output")
        settings = folder / "config.yaml"
        settings.write_text(config.to_yaml())
        slurm = dict(os.environ) if "SLURM_JOB_ID" in os.environ else None
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                command_of(cell, settings, slurm),
                env={**environment_of(cell), **slot.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches it through us, once
                preexec_fn=_prepared(slot),
                pass_fds=(lock.fd,),
            )
        return Attempt(cell, config, folder, slot, lock, process, time.monotonic(), goes_on, before)

    def _collect(self) -> None:
        for attempt in [attempt for attempt in self.running if attempt.process.poll() is not None]:
            self.running.remove(attempt)
            self.free.append(attempt.slot)
            try:
                self._ended(attempt, attempt.process.returncode)
            finally:
                self._release(attempt.lock)

    def _release(self, lock: Lock) -> None:
        """Release the cell's lock and remove empty folders."""
        lock.release()
        for folder in (lock.path.parent, self.folder):
            with suppress(OSError):  # something is in it
                folder.rmdir()

    def _ended(self, attempt: Attempt, code: int) -> None:
        cell = attempt.cell
        row = self._row_of(attempt)
        if row is None:
            if code == USER_ERROR and attempt.goes_on:  # from that checkpoint it cannot: it begins anew
                shutil.rmtree(attempt.folder)
                self.waiting.insert(0, cell)
                return
            if code == USER_ERROR and not self.recorded:
                said = attempt.log.read_text(errors="replace").strip()
                shutil.rmtree(attempt.folder)
                raise ValueError(f"cell {cell.number} ({cell.arm.label}) was refused:\n{said}")
            row = record(cell, attempt.config, "failed", _what_went_wrong(attempt, code), self.out)
        self.recorded += 1
        if self.logs is not None and row["status"] == "ok":
            shutil.copyfile(attempt.log, self.logs / f"{attempt.name}.txt")
        attempt.clear(row["status"])
        self.tries[cell.key] -= row["status"] != "ok"
        again = row["status"] != "ok" and self.tries[cell.key] > 0
        if again:
            self.waiting.insert(0, cell)
        note = "" if row["status"] == "ok" else f"{row['error']}{'; trying once more' if again else ''}"
        seconds = time.monotonic() - attempt.started
        log = attempt.log if row["status"] == "failed" else None
        self.progress.ended(cell, row, seconds, [*self.waiting, *(a.cell for a in self.running)], note, log)

    def _row_of(self, attempt: Attempt) -> Row | None:
        return next(iter(self._rows_of(attempt.name)[attempt.rows_before :]), None)

    def _rows_of(self, name: str) -> list[Row]:
        return [row for row in sound_rows(self.out) if row["run_name"] == name]

    def _stop(self, error: BaseException) -> None:
        """End what runs; every cell leaves its row, or has one written for it."""
        if not self.running:
            return
        self.progress.say("stopping the running cells ...")
        end([attempt.process for attempt in self.running], _STOP_S)
        for attempt in self.running:
            row = self._row_of(attempt)
            if row is None:
                text = f"the sweep was stopped before this run's training began: {type(error).__name__} {error}"
                record(attempt.cell, attempt.config, "preempted", text, self.out)
            attempt.clear(row["status"] if row is not None else "preempted")
            self._release(attempt.lock)
        self.running.clear()


def may_go_on(folder: Path) -> bool:
    """Has the run in ``folder``, which has its name, left a checkpoint to go on from?"""
    return any(folder.glob("output/runs/*/checkpoints/step-*/manifest.json"))


def _prepared(slot: Slot) -> Callable[[], None]:
    """A preexec_fn for Popen: the child keeps to the slot's cores and is told to stop (so that it records itself) if we
    die."""
    tie = dying_with_this_process(signal.SIGTERM)

    def prepare() -> None:
        if slot.cores is not None:
            os.sched_setaffinity(0, slot.cores)
        tie()

    return prepare


def _what_went_wrong(attempt: Attempt, code: int) -> str:
    how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    lines = attempt.log.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{how}, without a row of its own: {last}" if last else f"{how}, without a row of its own"
