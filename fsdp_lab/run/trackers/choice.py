"""Which trackers a run has, made when its training begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fsdp_lab.run.trackers.guarded import Guarded
from fsdp_lab.run.trackers.mlflow import MLflow
from fsdp_lab.run.trackers.protocol import Status, Tracker
from fsdp_lab.run.trackers.tensorboard import TensorBoard
from fsdp_lab.run.trackers.trackio import Trackio
from fsdp_lab.run.trackers.wandb import WandB

PROJECT = "fsdp-lab"
"""What the runs are filed under, where a tracker files them."""


class Trackers:
    """The trackers ``names`` of rank 0; with no names nothing happens.

    ``events``: TensorBoard's folder; the others' folders are beside it. ``values``: the settings by name. ``done``:
    the steps that an earlier process of this run has made.
    """

    def __init__(self, names: tuple[str, ...], run: str, events: Path, values: Mapping[str, Any], done: int) -> None:
        folder = events.parent
        makers: dict[str, Callable[[], Tracker]] = {
            "tensorboard": partial(TensorBoard, events, done),
            "wandb": partial(WandB, PROJECT, run, folder / "wandb", done),
            "mlflow": partial(MLflow, PROJECT, run, folder / "mlflow", done > 0),
            "trackio": partial(Trackio, PROJECT, run, values, done > 0),
        }
        self._trackers = [Guarded(name, makers[name], values) for name in names]

    def log(self, step: int, scalars: Mapping[str, float | None]) -> None:
        """Store numbers after ``step`` steps; what is None or not finite is left out."""
        values = {name: float(x) for name, x in scalars.items() if x is not None and math.isfinite(x)}
        for tracker in self._trackers if values else ():
            tracker.log(values, step)

    def log_row(self, step: int, row: Mapping[str, Any]) -> None:
        """Store the numbers of a results row, as ``row/...`` after the last step."""
        self.log(step, {f"row/{name}": value for name, value in row.items() if type(value) in (int, float)})

    def finish(self, status: Status) -> None:
        """End all trackers, told how the run ended; once ended they take no more."""
        for tracker in self._trackers:
            tracker.finish(status)
        self._trackers = []
