"""trackio: Hugging Face's tracker that keeps its numbers in a local database (TRACKIO_DIR), or on a Space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsdp_lab.run.trackers.protocol import Status


class Trackio:
    """The run ``name`` of a project; ``is_resumed``: an earlier process has begun it."""

    name = "trackio"
    requires_logging_directory = False

    def __init__(self, project: str, name: str, values: Mapping[str, Any], is_resumed: bool) -> None:
        import trackio

        # it takes settings at its start only; its own samples of the machine would run into the steps that are timed
        self._run: Any = trackio.init(
            project=project,
            name=name,
            config=dict(values),
            resume="allow" if is_resumed else "never",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    @property
    def tracker(self) -> Any:
        """The run that ``trackio.init`` gave."""
        return self._run

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Nothing: the run was made with its settings."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Give trackio the numbers of one step."""
        self._run.log(dict(values), step=step)

    def finish(self, status: Status) -> None:
        """Write what is still in memory. Its runs have no status, so one that did not end well gets an alert."""
        if status != "ok":
            self._run.alert(f"the run ended: {status}")
        self._run.finish()
