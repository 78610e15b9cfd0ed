"""How a target is chosen: by runs of `none` with the task's settings, so that an entry as good as they can reach it.

The link changes no number of `none`, so there is none here. Seeds are 1, 2, 3, ..., which no entry is likely to have.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.statistics.intervals import t_quantile
from experiments.runs.training import train
from experiments.speedrun.task import FEWEST_RUNS, SIGNIFICANCE, Task, digest_of_settings
from experiments.sweeps.plan import sound_rows
from fsdp_lab.settings.config import TrainConfig

_ROUNDED_TO = 0.01  # nats


def losses(task: Task, ranks: int, own: Mapping[str, Any], out: Path, seeds: int) -> dict[int, float]:
    """The validation loss of each of the seeds 1 to ``seeds``; those that rows in ``out`` have are not run again.

    ValueError when a run fails."""
    settings = task.settings(ranks, own)
    wanted = digest_of_settings(settings)
    for seed in range(1, seeds + 1):
        if seed in _found(out, wanted):
            continue
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "config.yaml"
            file.write_text(TrainConfig.of(**{**settings, "seed": seed}).to_yaml())
            if code := train(["--config", str(file)], ranks, out):
                raise ValueError(f"seed {seed} ended with exit code {code}; what it said stands above")
    by_seed = _found(out, wanted)
    return {seed: by_seed[seed] for seed in range(1, seeds + 1)}


def _found(out: Path, digest: str) -> dict[int, float]:
    rows = [row for row in sound_rows(out) if row["status"] == "ok" and row["val_loss"] is not None]
    return {row["seed"]: row["val_loss"] for row in rows if digest_of_settings(row["config"]) == digest}


def target_of(losses: Sequence[float]) -> float:
    """The lowest target, rounded up, for which the fewest runs of an entry suffice, if these are its mean and spread.

    An entry that is as good as `none` thus has an even chance with `FEWEST_RUNS`, and a better one with more.
    """
    error = statistics.stdev(losses) / math.sqrt(FEWEST_RUNS)
    lowest = statistics.fmean(losses) + t_quantile(1 - SIGNIFICANCE, FEWEST_RUNS - 1) * error
    return math.floor(lowest / _ROUNDED_TO + 1) * _ROUNDED_TO
