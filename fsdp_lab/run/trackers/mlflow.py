"""MLflow, by its client: that needs no run to be "active", which MLflow keeps for each thread apart."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsdp_lab.run.trackers.settings_as_text import flat

_LONGEST_VALUE = 500  # characters that every version of MLflow takes
_AT_A_TIME = 100  # params of one request


class MLflow:
    """A run ``name`` of an experiment; MLFLOW_TRACKING_URI says where, else a folder of the run holds it."""

    name = "mlflow"
    requires_logging_directory = True

    def __init__(self, project: str, name: str, folder: Path) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder is all that a single run needs
        from mlflow import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or folder.resolve().as_uri()
        self._client: Any = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(project)
        experiment = self._client.create_experiment(project) if found is None else found.experiment_id
        self._id: str = self._client.create_run(experiment, run_name=name).info.run_id

    @property
    def tracker(self) -> Any:
        """MLflow's own client, an ``MlflowClient``."""
        return self._client

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Store the settings as params, those of more characters than MLflow takes cut."""
        from mlflow.entities import Param

        params = [Param(name, str(value)[:_LONGEST_VALUE]) for name, value in flat(values).items()]
        for first in range(0, len(params), _AT_A_TIME):
            self._client.log_batch(self._id, params=params[first : first + _AT_A_TIME])

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of a step in one request."""
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def finish(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._id)
