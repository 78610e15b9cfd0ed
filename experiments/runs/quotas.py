"""Ranks that may use a part of a processor only: a quota for each, by control groups or by stopping and continuing.

A control group (cpu.max of version 2, cpu.cfs_quota_us of version 1) lets a process run for its quota of every period
of 10 ms and then waits for the next one. That is a slow device over times longer than the period; a rank that waited
for others computes at full speed until its quota of the period is gone. Control groups need root and a hierarchy that
can be written. Where there is none, SIGSTOP and SIGCONT do the same with a period of 20 ms: the whole process stands
still in between, its messages, too.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 10_000
_STOPPED_PERIOD_S = 20e-3
_LEAST = 0.1  # the kernel takes no quota below 1 ms


def check_quotas(quotas: Sequence[float], ranks: int) -> None:
    """ValueError when these are no quotas for so many ranks."""
    if len(quotas) != ranks:
        raise ValueError(f"quota: {len(quotas)} given for {ranks} ranks; wants one for each")
    for quota in quotas:
        if not _LEAST <= quota <= 1024:
            raise ValueError(f"quota: got {quota:g}, wants processors from {_LEAST:g} (0.5: half of one)")


class Quotas:
    """As a context manager: ``with Quotas([1.0, 0.33]) as quotas: quotas.hold(rank, process)``.

    ``quotas``: processors that each rank may use. ``how``: "cgroup v2", "cgroup v1" or "signals". What was made is
    removed at the end, when the processes must have ended.
    """

    def __init__(self, quotas: Sequence[float], root: Path = _ROOT) -> None:
        check_quotas(quotas, len(quotas))
        self.quotas = list(quotas)
        self._parent, self.how = _writable(root)
        self._name = f"fsdp_lab-{os.getpid()}-{secrets.token_hex(3)}"
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        if self._parent is None:
            print("no control group can be written (root?): ranks are stopped and continued instead", file=sys.stderr)
        for rank in range(len(self.quotas)):
            self._make(rank)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for rank in range(len(self.quotas)):
            self._remove(rank)

    def hold(self, rank: int, process: subprocess.Popen[Any]) -> None:
        """From now on ``process`` and what it starts have the quota of ``rank``."""
        if self._parent is None:
            if self.quotas[rank] < 1:
                thread = threading.Thread(target=self._stop_and_go, args=(process, self.quotas[rank]), daemon=True)
                thread.start()
                self._threads.append(thread)
            return
        (self._group(rank) / "cgroup.procs").write_text(str(process.pid))

    def _group(self, rank: int) -> Path:
        assert self._parent is not None
        return self._parent / f"{self._name}-{rank}"

    def _make(self, rank: int) -> None:
        if self._parent is None:
            return
        group, quota = self._group(rank), round(self.quotas[rank] * _PERIOD_US)
        group.mkdir()
        if self.how == "cgroup v2":
            (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))

    def _remove(self, rank: int) -> None:
        if self._parent is None:
            return
        for _ in range(100):
            with suppress(OSError):  # busy until the kernel has buried the last process
                self._group(rank).rmdir()
                return
            time.sleep(0.02)

    def _stop_and_go(self, process: subprocess.Popen[Any], quota: float) -> None:
        """Stops as long as it let the process run, in proportion: sleeps last longer than asked on a busy machine."""
        owed, resumed = 0.0, time.monotonic()
        while process.poll() is None and not self._stopping.is_set():
            time.sleep(quota * _STOPPED_PERIOD_S)
            with suppress(ProcessLookupError):
                stopped = time.monotonic()
                os.killpg(process.pid, signal.SIGSTOP)
                owed += (stopped - resumed) * (1 - quota) / quota
                time.sleep(max(0.0, owed))
                os.killpg(process.pid, signal.SIGCONT)
                resumed = time.monotonic()
                owed -= resumed - stopped


def _writable(root: Path) -> tuple[Path | None, str]:
    """Where control groups with quotas can be made, and how quotas are held there."""
    if os.access(root, os.W_OK) and "cpu" in _words(root / "cgroup.subtree_control"):
        return root, "cgroup v2"
    for folder in (root / "cpu", root / "cpu,cpuacct"):
        if (folder / "cpu.cfs_quota_us").exists() and os.access(folder, os.W_OK):
            return folder, "cgroup v1"
    return None, "signals"


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
