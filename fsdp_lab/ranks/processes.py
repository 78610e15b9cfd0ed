"""What Linux knows of processes: the state of another one, and that this one ends with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

LAUNCHER = "FSDP_LAB_LAUNCHER"  # the process id of who started this rank and waits for it
_PR_SET_PDEATHSIG = 1


def state(pid: int) -> str:
    """The state letter of a process: R, S, D, T (stopped by a signal), Z or X (ended); "" when nobody can tell."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X" if os.path.isdir("/proc/self") else ""


def name_of_rank(launcher: int, rank: int | str) -> str:
    """What the process of a forked rank is called: its command line and environment, as others can read them, are the
    launcher's."""
    return f"rank {rank}/{launcher}"


def forked_ranks(launcher: int) -> dict[int, int]:
    """The process ids of a launcher's forked ranks that run, by rank, also when the launcher has ended."""
    pids = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name = (folder / "comm").read_text().strip()
            if name.endswith(f"/{launcher}") and state(int(folder.name)) not in ("", "X", "Z"):
                pids[int(name.removeprefix("rank ").partition("/")[0])] = int(folder.name)
    return pids


def launcher_is_gone() -> bool:
    """Has the launcher of this rank died, and with it the store that it kept?"""
    launcher = os.environ.get(LAUNCHER)
    return launcher is not None and os.getppid() != int(launcher)


def end_with_launcher() -> None:
    """Have the kernel send SIGTERM to this rank when its launcher dies, so that a killed launcher leaves no orphans.

    Nothing happens for a rank that was not started by `fsdp_lab.launch`, nor where there is no prctl (macOS).
    """
    if LAUNCHER not in os.environ:
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if launcher_is_gone():  # it died before we asked
            os.kill(os.getpid(), signal.SIGTERM)
