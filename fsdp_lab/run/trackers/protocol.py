"""What a tracker is: the shape that Hugging Face's accelerate gave to its trackers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

Status = Literal["ok", "failed", "preempted"]
"""How a run ended, as its results row says it."""


class Tracker(Protocol):
    """One place where a run's settings and numbers go.

    An object is made for one run, when its training begins. All its methods are called from one thread, and whatever
    they raise ends the tracker with a warning, not the run.
    """

    name: str
    """As ``--trackers`` names it."""

    requires_logging_directory: bool
    """Does it write into a folder of the run?"""

    @property
    def tracker(self) -> Any:
        """The object of the tracker's own package, for what this interface does not have."""
        ...

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Store the settings of the run by name. Called once, before any number."""
        ...

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Store numbers after ``step`` optimizer steps, by names as ``train/loss``; ``row/...`` are the final ones."""
        ...

    def finish(self, status: Status) -> None:
        """No more numbers come, and the run ended as ``status`` says. Called once."""
        ...
