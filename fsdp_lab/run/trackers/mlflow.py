"""MLflow, by its client: that needs no run to be "active", which MLflow keeps for each thread apart."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsdp_lab.files.atomic import write_bytes
from fsdp_lab.run.trackers.protocol import Status
from fsdp_lab.run.trackers.settings_as_text import flat

_LONGEST_VALUE = 500  # characters that every version of MLflow takes
_AT_A_TIME = 100  # params of one request
_STATUS: dict[Status, str] = {"ok": "FINISHED", "failed": "FAILED", "preempted": "KILLED"}


class MLflow:
    """A run ``name`` of an experiment; MLFLOW_TRACKING_URI says where, else ``folder`` holds it.

    MLflow chooses a run's id, so the file ``mlflow_run_id`` beside ``folder`` keeps it: where the training is resumed
    (``is_resumed``), that run goes on. Where it is not known there, another begins.
    """

    name = "mlflow"
    requires_logging_directory = True

    def __init__(self, project: str, name: str, folder: Path, is_resumed: bool) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder is all that a single run needs
        from mlflow import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or folder.resolve().as_uri()
        self._client: Any = MlflowClient(tracking_uri=uri)
        kept = folder.with_name("mlflow_run_id")
        earlier = self._reopened(kept) if is_resumed else None
        self._id: str = earlier or self._created(project, name)
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(kept, self._id.encode())

    def _created(self, project: str, name: str) -> str:
        existing = self._client.get_experiment_by_name(project)
        experiment = self._client.create_experiment(project) if existing is None else existing.experiment_id
        return str(self._client.create_run(experiment, run_name=name).info.run_id)

    def _reopened(self, kept: Path) -> str | None:
        """The id of the run that an earlier process began, which is running again; None where there is none."""
        from mlflow.exceptions import MlflowException

        try:
            run = self._client.get_run(kept.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError, MlflowException):  # no file, or not a run of this server
            return None
        if run.info.lifecycle_stage != "active":  # deleted by hand
            return None
        self._client.update_run(run.info.run_id, status="RUNNING")
        return str(run.info.run_id)

    @property
    def tracker(self) -> Any:
        """MLflow's own client, an ``MlflowClient``."""
        return self._client

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Store the settings as params, those of more characters than MLflow takes cut.

        Params that the run has already are left as they are: MLflow refuses to change one.
        """
        from mlflow.entities import Param

        stored = self._client.get_run(self._id).data.params
        new = {name: value for name, value in flat(values).items() if name not in stored}
        params = [Param(name, str(value)[:_LONGEST_VALUE]) for name, value in new.items()]
        for first in range(0, len(params), _AT_A_TIME):
            self._client.log_batch(self._id, params=params[first : first + _AT_A_TIME])

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of a step in one request."""
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def finish(self, status: Status) -> None:
        """Mark the run as ended: FINISHED, FAILED, or, told to stop, KILLED."""
        self._client.set_terminated(self._id, _STATUS[status])
