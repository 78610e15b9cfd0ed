"""Weights & Biases. ``WANDB_MODE=offline`` writes to a folder of the run and needs neither account nor network."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsdp_lab.ranks.exit_codes import FAILED, OK, PREEMPTED
from fsdp_lab.run.trackers.protocol import Status

_EXIT_CODES: dict[Status, int] = {"ok": OK, "failed": FAILED, "preempted": PREEMPTED}


class WandB:
    """The run ``name`` of a project; wandb's own environment variables say where it is (WANDB_MODE, WANDB_API_KEY)."""

    name = "wandb"
    requires_logging_directory = True

    def __init__(self, project: str, name: str, folder: Path, done: int) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        # the same id for the same folder: a resumed run goes on with its own curves
        identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        quiet = wandb.Settings(x_disable_stats=True)  # its samples of the machine would run into timed steps
        resume = "allow" if done else None
        self._run: Any = wandb.init(
            project=project, name=name, id=identity, resume=resume, dir=str(folder), settings=quiet
        )

    @property
    def tracker(self) -> Any:
        """The run that ``wandb.init`` gave, a ``wandb.Run``."""
        return self._run

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Store the settings as the run's config."""
        self._run.config.update(dict(values), allow_val_change=True)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of a step; the final ones go to the run's summary alone."""
        final = {name: value for name, value in values.items() if name.startswith("row/")}
        self._run.summary.update(final)
        if of_step := {name: value for name, value in values.items() if name not in final}:
            self._run.log(of_step, step=step)

    def finish(self, status: Status) -> None:
        """End the run, so that nothing of it is left in a process of wandb's own.

        An exit code other than 0 makes it a failed run there, or, marked before, a preempted one.
        """
        if status == "preempted":
            self._run.mark_preempting()
        self._run.finish(exit_code=_EXIT_CODES[status])
