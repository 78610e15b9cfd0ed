"""What checkpoints ask of those whose state they hold; they know no more of a run than this."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.config import AnyTraining


class SavedRun(Protocol):
    """The run whose checkpoints these are, as it is before its first step."""

    @property
    def config(self) -> AnyTraining:
        """Every setting; a checkpoint names those that affect the training."""
        ...

    @property
    def ranks(self) -> Ranks:
        """Who takes part: each rank saves what it alone has."""
        ...

    @property
    def folder(self) -> Path:
        """The run's folder, named as the run; checkpoints are in a folder in it."""
        ...

    @property
    def is_resumed(self) -> bool:
        """Has the folder been there, with what an earlier process left?"""
        ...

    def say(self, text: str, /) -> None:
        """Print a line for the user, from rank 0."""
        ...

    def passed(self, point: str, /) -> None:
        """Tell the watchdog where this rank stands: saving may take one rank long."""
        ...

    def ask_at_the_end(self, fields: Callable[[], dict[str, Any]], /) -> None:
        """Have ``fields`` asked for the results row of a run that does not end well, perhaps in another thread."""
        ...


class Training(Protocol):
    """The steps of a run, as they are saved between two of them."""

    @property
    def done(self) -> int:
        """How many steps were made, also by earlier processes."""
        ...

    @property
    def total_steps(self) -> int:
        """How many there are in the end."""
        ...

    @property
    def is_void(self) -> bool:
        """Was the last optimizer step skipped, so that nothing of it may be saved?"""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Inside, what is sent is no step's; collective."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """This rank's sums over the steps made, as plain values and tensors: `Restored.training` has them again."""
        ...


class Restored(NamedTuple):
    """Where a training goes on: after ``step`` steps, with ``training``, what `Training.state_dict` gave then."""

    step: int
    training: dict[str, Any]


class Stateful(Protocol):
    """Something that goes on from where another process left it. States are JSON-able."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, as plain values and tensors."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. ValueError when that cannot be."""
        ...
