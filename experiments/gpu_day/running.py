"""One stage: its commands, one after the other, each in a process of its own, until its time is up."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from experiments.gpu_day.table import ROOT, Stage
from experiments.runs.processes import dying_with_this_process, end, leaving_tidily
from fsdp_lab.ranks.environment import rank_environment

LOG = "log.txt"  # all that the stage's commands print
GRACE_S = 20  # between being asked to stop and being killed: a training saves, a benchmark ends its turn
_TAIL = 30  # lines
_TOLD_TO_STOP = (128 + signal.SIGINT, 128 + signal.SIGTERM)


@dataclass(frozen=True)
class Outcome:
    """How a stage ended: ``state`` is ok, failed or stopped; ``why``: the reason, where it is not ok."""

    state: str
    seconds: float
    why: str | None


def run(stage: Stage, folder: Path, seconds: float, on_cpu: bool) -> Outcome:
    """Run the stage for ``seconds`` at most; what it prints is added to `LOG` in ``folder``.

    A signal that stops us stops it, too, and SystemExit is raised again.
    """
    begun = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG).open("a", encoding="utf-8") as log, leaving_tidily():
        for command in stage.commands:
            log.write(f"$ {shlex.join(('python', *command[1:]))}\n")
            log.flush()
            left = begun + seconds - time.monotonic()
            code = None if left <= 0 else _code(command, log.fileno(), left, on_cpu)
            took = time.monotonic() - begun
            if code is None:
                return Outcome("stopped", took, f"its {seconds:.0f} seconds were up")
            if code in _TOLD_TO_STOP:
                return Outcome("stopped", took, f"exit code {code} of {' '.join(command[1:3])}: told to stop")
            if code:
                return Outcome("failed", took, f"exit code {code} of {' '.join(command[1:3])}")
    return Outcome("ok", time.monotonic() - begun, None)


def tail(folder: Path) -> list[str]:
    """The last lines that a stage printed."""
    try:
        text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line.rpartition("\r")[2][:300] for line in text.splitlines()][-_TAIL:]


def _code(command: tuple[str, ...], log: int, seconds: float, on_cpu: bool) -> int | None:
    """The command's exit code (128 + n where signal n ended it); None: it was stopped after ``seconds``."""
    # two threads on a busy machine wait for each other
    small = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} if on_cpu else {}
    environment = rank_environment(1) | small
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=dying_with_this_process(signal.SIGTERM),
    )
    try:
        code = process.wait(timeout=seconds)
        return code if code >= 0 else 128 - code
    except subprocess.TimeoutExpired:
        return None
    finally:
        end([process], GRACE_S)  # nothing where it has ended by itself
