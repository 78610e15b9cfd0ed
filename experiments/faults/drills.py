"""Training runs that something happens to: started under the launcher, followed line by line, and what they leave."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import queue
import select
import signal
import subprocess
import termios
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.runs.training import torchrun_command
from fsdp_lab.ranks.faults import VARIABLE
from fsdp_lab.ranks.processes import forked_ranks

_MARK = "FSDP_LAB_DRILL"  # in the environment of all that a drill starts, so that nothing of it is overlooked


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    ``code``: the launcher's exit code. ``seconds``: from the fault to the end of the last process; None without one.
    ``left``: commands of the processes that had not ended ``patience_s`` after the launcher; they were killed.
    """

    code: int
    seconds: float | None
    output: list[str]
    left: list[str]

    @property
    def message(self) -> str:
        """What the run printed about its end."""
        said = [line for line in self.output if line.startswith(("fsdp_lab.train:", "launch:", "rank "))]
        return " / ".join(line for line in said if not line.startswith("rank 0 failed"))


class Drill:
    """One training run on this machine, under the launcher that `run_safe_training.sh` uses."""

    def __init__(
        self,
        flags: Sequence[str],
        ranks: int,
        fault: str | None = None,
        temporary: Path | None = None,
        in_terminal: bool = False,
    ) -> None:
        """Start the run. ``temporary`` is its folder for temporary files, for callers who look at what stays there.

        ``in_terminal``: start it as the program of a terminal, which `close_terminal` closes."""
        self._mark = uuid.uuid4().hex
        environment = {**os.environ, _MARK: self._mark}
        if temporary is not None:
            temporary.mkdir(parents=True, exist_ok=True)
            environment["TMPDIR"] = str(temporary)
        environment.pop(VARIABLE, None)
        if fault is not None:
            environment[VARIABLE] = fault
        self._lines: queue.Queue[tuple[float, str] | None] = queue.Queue()
        self._closes = threading.Event()
        ours, theirs = pty.openpty() if in_terminal else os.pipe()
        self._process = subprocess.Popen(
            torchrun_command("fsdp_lab.train", flags, ranks),
            env=environment,
            stdin=theirs if in_terminal else None,
            stdout=theirs,
            stderr=theirs,
            start_new_session=in_terminal,
            preexec_fn=_owning_its_terminal if in_terminal else _heeding_hangups,
        )
        if in_terminal:
            termios.tcsetwinsize(theirs, (24, 120))
        os.close(theirs)
        threading.Thread(target=self._read, args=(ours,), daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id of the launcher."""
        return self._process.pid

    def close_terminal(self) -> None:
        """Close the terminal, as when its window is closed: the kernel sends SIGHUP, and further output is refused."""
        self._closes.set()

    def follow(
        self, on_line: Callable[[str], bool] | None = None, timeout_s: float = 600, patience_s: float = 60
    ) -> Ended:
        """Read until every process of the run has ended.

        ``on_line`` sees each line and returns True when it has just done something to the run; the injector's own
        line counts as that too. After ``timeout_s`` seconds all that is left is killed.
        """
        try:
            return self._follow(on_line, timeout_s, patience_s)
        finally:
            self._kill()

    def _follow(self, on_line: Callable[[str], bool] | None, timeout_s: float, patience_s: float) -> Ended:
        output: list[str] = []
        happened: float | None = None
        deadline, launcher_ended = time.monotonic() + timeout_s, False
        while True:
            if not launcher_ended and self._process.poll() is not None:
                launcher_ended, deadline = True, min(deadline, time.monotonic() + patience_s)
            try:
                item = self._lines.get(timeout=0.5)
            except queue.Empty:
                if time.monotonic() > deadline:
                    break
                continue
            if item is None:  # nobody holds the pipe any more, or the terminal is closed
                while time.monotonic() < deadline and (self._process.poll() is None or any(self.processes().values())):
                    time.sleep(0.1)
                break
            at, line = item
            output.append(line)
            if line.startswith("injected fault") or (on_line is not None and on_line(line)):
                happened = at if happened is None else happened
        seconds = None if happened is None else time.monotonic() - happened
        left = self._kill()
        return Ended(self._process.wait(), seconds, output, left)

    def _kill(self) -> list[str]:
        """Kill what is left of the run; returns the command lines of those processes."""
        left = {pid: text for pid, text in self.processes().items() if text}  # one that has ended has none
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return list(left.values())

    def processes(self) -> dict[int, str]:
        """Command lines of everything that this run started and that has not ended, by process id."""
        commands = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{_MARK}={self._mark}".encode() in (folder / "environ").read_bytes():
                    commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return commands

    def rank_processes(self) -> dict[int, int]:
        """Process ids of the ranks that have started, by rank."""
        by_rank = forked_ranks(self.pid)
        for pid in self.processes():
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                ranks = [int(word[5:]) for word in variables if word.startswith(b"RANK=")]
                if ranks:
                    by_rank[ranks[0]] = pid
        return by_rank

    def _read(self, ours: int) -> None:
        rest = b""
        while not self._closes.is_set():
            if not select.select([ours], [], [], 0.05)[0]:
                continue
            try:
                read = os.read(ours, 1 << 16)
            except OSError:  # a terminal's end
                read = b""
            if not read:
                break
            *lines, rest = (rest + read).replace(b"\r", b"\n").split(b"\n")  # a progress bar's lines end in CR
            for line in lines:
                self._lines.put((time.monotonic(), line.decode(errors="replace")))
        if rest:
            self._lines.put((time.monotonic(), rest.decode(errors="replace")))
        os.close(ours)
        self._lines.put(None)


def _owning_its_terminal() -> None:
    """In the child process: make standard input the terminal of its session, so that both end together."""
    _heeding_hangups()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _heeding_hangups() -> None:
    """In the child process: heed SIGHUP, also where the drills themselves were started under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
