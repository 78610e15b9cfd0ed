"""What a results row says of a run, gathered as the run goes: it must be known whenever and however the run ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fsdp_lab import results
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.run.curve import seen_from
from fsdp_lab.run.environment import environment
from fsdp_lab.run.goals import Goals
from fsdp_lab.settings.config import AnyTraining


class Record:
    """One run's fields so far."""

    def __init__(self, config: AnyTraining, ranks: Ranks, name: str, curve_path: Path, goals: Goals) -> None:
        self.results_path = Path(config.run.results_path)
        self.name = name
        self.noted: dict[str, Any] = environment()  # of the code that runs, not of what is edited meanwhile
        self._config, self._ranks, self._curve_path, self._goals = config, ranks, curve_path, goals
        if ranks.link is not None:
            self.note(**ranks.link.row())

    def note(self, **fields: Any) -> None:
        """Fields that are known already; a failed run's row has them too."""
        self.noted |= fields

    def row(self, status: str, error: str | None = None) -> dict[str, Any]:
        """The whole row of a run that ends now."""
        row = {
            "schema_version": results.SCHEMA_VERSION,
            "status": status,
            "error": error,
            "run_name": self.name,
            "time_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "world_size": self._ranks.world,
            "backend": self._ranks.backend,
            **self._config.row(),
            "wall_time_s": seconds_since_process_start(),
            "loss_curve": seen_from(self.results_path, self._curve_path),
            **self._goals.row(),
            **self.noted,
        }
        if self._ranks.are_virtual:
            row |= dict.fromkeys(results.TIMES)  # one process's time is no rank's
        return row


def seconds_since_process_start() -> float:
    """By the clock on the wall; CPU seconds where there is no /proc."""
    try:
        with open("/proc/self/stat") as f:
            started = int(f.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started / 100  # in USER_HZ, 100 on every Linux we know
    except OSError:
        return time.process_time()
