"""What a results row says of a run, gathered as the run goes: it must be known whenever and however the run ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fsdp_lab import results
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.run.environment import environment
from fsdp_lab.run.goals import Goals
from fsdp_lab.run.storage.curve import seen_from
from fsdp_lab.run.storage.paths import Paths
from fsdp_lab.settings.config import AnyTraining


class Record:
    """The fields of one run's row that are known so far."""

    def __init__(self, config: AnyTraining, ranks: Ranks, name: str, paths: Paths) -> None:
        self.name, self.paths = name, paths
        self.goals = Goals(config.run.target_ppl, config.run.ppl_at_s)
        self.noted: dict[str, Any] = environment()  # of the code that runs, not of what is edited meanwhile
        self._config, self._ranks = config, ranks
        self._asked_at_the_end: Callable[[], dict[str, Any]] = dict
        if ranks.link is not None:
            self.note(**ranks.link.row())

    def note(self, **fields: Any) -> None:
        """Add fields that are known already; a failed run's row has them too."""
        self.noted |= fields

    def ask_at_the_end(self, fields: Callable[[], dict[str, Any]]) -> None:
        """Have ``fields`` asked for the row of a run that does not end well, perhaps in a thread of its own."""
        self._asked_at_the_end = fields

    def row(self, status: str, error: str | None = None) -> dict[str, Any]:
        """The whole results row of a run that ends now."""
        if status != "ok":
            self.note(**self._asked_at_the_end())
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
            "loss_curve": seen_from(self.paths.results, self.paths.curve),
            **self.goals.row(),
            **self.noted,
        }
        if self._ranks.are_virtual:
            row |= dict.fromkeys(results.TIMES)  # one process's time is no rank's
        return row


def seconds_since_process_start() -> float:
    """Wall-clock seconds since this process began; CPU seconds where there is no /proc."""
    try:
        with open("/proc/self/stat") as f:
            started = int(f.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started / 100  # in USER_HZ, 100 on every Linux we know
    except OSError:
        return time.process_time()
